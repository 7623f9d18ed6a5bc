"""Overview: what is in the workspace, what does it say, what comes next?"""

from app.overview import page
from app.shell import frame
from torchsplit_core.jobs.job_kinds import PROFILE, QUICK_START, TRACE

with frame.fault_boundary():
    page.render(frame.open_page("Overview", QUICK_START, TRACE, PROFILE, apart=page.failed_job_in_form))
