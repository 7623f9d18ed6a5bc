"""Models: which models are here, and what is known of them?"""

from app.models import page, upload
from app.shell import frame
from torchsplit_core.jobs.job_kinds import PARTITION, PROFILE, QUICK_START, TRACE

with frame.fault_boundary():
    page.render(
        frame.open_page("Models", TRACE, PROFILE, PARTITION, QUICK_START, apart=upload.failed_job_in_form)
    )
