"""What a fragment sends survives a run that overtakes it as a whole or not at all."""

from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue
from streamlit.runtime.scriptrunner_utils import script_run_context
from streamlit.testing.v1 import AppTest

from app import fragment_messages
from tests.support.paths import ROOT

FRAGMENT = "the fragment"


def element(path: list[int], fragment: str = "") -> ForwardMsg:
    message = ForwardMsg(hash="known to the browser")
    message.metadata.delta_path[:] = path
    message.delta.new_element.markdown.body = "long " * 3000
    message.delta.fragment_id = fragment
    return message


def test_a_run_that_overtakes_a_fragment_leaves_nothing_of_it_in_the_queue():
    queue = ForwardMsgQueue()
    queue.enqueue(fragment_messages.reference_or_whole(element([0, 1, 0], FRAGMENT)))
    queue.clear(retain_lifecycle_msgs=True, fragment_ids_this_run=[FRAGMENT])
    assert queue.is_empty()


def test_outside_a_fragment_what_the_browser_has_is_sent_as_a_reference():
    sent = fragment_messages.reference_or_whole(element([0, 1]))
    assert sent.ref_hash == "known to the browser" and not sent.HasField("delta")


def test_the_pages_send_by_this_rule(monkeypatch):
    monkeypatch.setattr(script_run_context, "create_reference_msg", None)
    AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60).run()
    assert script_run_context.create_reference_msg is fragment_messages.reference_or_whole
