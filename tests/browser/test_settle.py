"""The wait before every look at a page: it ends after what fades, and does not wait for what never ends."""

import pytest

from tests.support.browser.settle import settle, undisturbed

pytestmark = pytest.mark.browser
PAGE = """
<style>
    /* Six tenths of a second: the pages of the tests fade faster than they say, see HURRY. */
    #numbers { opacity: .3; transition: opacity 12s; }
    #numbers.shown { opacity: 1; }
    #spinner { animation: turn 1s infinite linear; }
    @keyframes turn { to { transform: rotate(360deg); } }
</style>
<div data-testid="stApp" data-test-script-state="running">
    <div id="spinner">o</div>
    <div id="numbers" data-stale="true">12</div>
</div>
<script>
    const numbers = document.getElementById('numbers');
    setTimeout(() => numbers.parentElement.dataset.testScriptState = 'notRunning', 150);
    setTimeout(() => { numbers.dataset.stale = 'false'; numbers.className = 'shown'; }, 450);
</script>
"""


def test_a_page_is_settled_once_it_is_drawn_and_nothing_fades(session):
    page = session()
    page.set_content(PAGE)
    settle(page)
    assert page.locator("#numbers").get_attribute("data-stale") == "false"
    assert page.evaluate("getComputedStyle(document.getElementById('numbers')).opacity") == "1"
    # A second wait does not rest on what the first one saw.
    page.evaluate("document.getElementById('numbers').className = ''")
    settle(page)
    assert page.evaluate("getComputedStyle(document.getElementById('numbers')).opacity") == "0.3"


def test_a_look_that_a_run_of_the_script_fell_into_is_repeated(session):
    page = session()
    page.set_content(PAGE)
    looks = []

    def look():
        looks.append(len(looks))
        if len(looks) == 1:
            page.evaluate(
                "() => { const app = document.querySelector('[data-testid=\"stApp\"]').dataset;"
                " app.testScriptState = 'running'; app.testScriptState = 'notRunning'; }"
            )
        return len(looks)

    assert undisturbed(page, look) == 2
    assert undisturbed(page, look) == 3
