"""Plans that run: served on this host, and measured under load.

settings, plan, device_binding   what may be chosen; models and workers of a plan; its slices on this host
part_export                      the stages of cut models, written before they are served
engine, batching                 requests to batches to workers and back; queues, turns on a shared slice
worker_pool, stage_workers       workers started, monitored and restarted; slots of workers, stages of models
worker_process, worker_connection, framing    a worker as the frontend sees it, and what crosses the socket
pinning                          a process held to cores
worker, model_runner             the worker's own side; the only modules that load torch
metrics                          counters for Prometheus, and batches for `measure`
protocol/                        HTTP with its limits, access, the Open Inference Protocol for server and client
frontend/, router/               the server of a plan; one address for models whose parts are servers of their own
load_test/                       open-loop load, measured beside plan and simulation
llm_endpoint/, llm_engine/       any LLM endpoint measured; a decoder served on this host by continuous batching
llm_frontend/                    the engines of a plan on cores: started, and one endpoint over them
ray_app                          a plan as a Ray Serve application
"""
