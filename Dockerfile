# The dashboard in a container. Checked by hadolint and by building the wheel of this context; never built or run as an
# image: untested.
#
#   docker build -t torchsplit .                                  pip's default torch for the platform (CUDA on Linux)
#   docker build -t torchsplit --build-arg TORCH_INDEX=URL .      torch of another index, a build for CPUs for instance
#   docker run --init -p 127.0.0.1:8501:8501 -v torchsplit:/data torchsplit
#
# It answers to localhost alone. For another name, say it: docker run … torchsplit --host plan.example.com
# (docs/guides/shared-server.md).

FROM python:3.11-slim AS wheel
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
ARG TORCH_INDEX=""
COPY requirements.txt /tmp/requirements.txt
# What is there and satisfies the pin is kept by the second line.
RUN if [ -n "$TORCH_INDEX" ]; then \
        pip install --no-cache-dir --index-url "$TORCH_INDEX" "$(grep '^torch==' /tmp/requirements.txt)"; \
    fi \
    && pip install --no-cache-dir -r /tmp/requirements.txt
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir --no-deps /tmp/wheels/*.whl \
    && useradd --create-home --uid 10001 torchsplit \
    && install -d -o torchsplit -g torchsplit /data
USER 10001
WORKDIR /home/torchsplit
# The store: workspaces, results, uploads.
ENV TORCHSPLIT_HOME=/data
VOLUME /data
EXPOSE 8501
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8501/_stcore/health', timeout=4)"]
# 0.0.0.0: of the container; what reaches it is what -p publishes. --host: the names that browsers ask for it by.
ENTRYPOINT ["torchsplit", "app", "--address", "0.0.0.0", "--port", "8501"]
CMD ["--host", "localhost"]
