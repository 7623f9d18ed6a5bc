"""Messages of fragments go to the browser whole.

Streamlit replaces what a browser already has by a reference, which does not say whose fragment it is. A run of a
fragment that overtakes another drops the other's messages, all but the references: one below a container that was
dropped, and the browser's tree has an element where it looks for that container. It then shows an empty page.
"""

from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

# Not public, and so pinned with Streamlit.
from streamlit.runtime import forward_msg_cache
from streamlit.runtime.scriptrunner_utils import script_run_context


def reference_or_whole(message: ForwardMsg) -> ForwardMsg:
    """A reference to what the browser has; the message itself where it is a fragment's."""
    if message.delta.fragment_id:
        return message
    return forward_msg_cache.create_reference_msg(message)


def send_whole() -> None:
    """Send the messages of fragments whole from now on, in every session of this process."""
    script_run_context.create_reference_msg = reference_or_whole  # type: ignore[assignment, attr-defined]
