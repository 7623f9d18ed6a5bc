"""Overview: what is in the workspace, what does it say, what comes next?"""

from app.overview import page
from app.shell import frame
from torchsplit_core.jobs.job_kinds import PROFILE, QUICK_START, TRACE

with frame.telling():
    page.show(frame.open_page("Overview", QUICK_START, TRACE, PROFILE, apart=page.told_in_form))
