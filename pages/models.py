"""Models: which models are here, and what is known of them?"""

from app.models import page, upload
from app.shell import frame
from torchsplit_core.jobs.job_kinds import PARTITION, PROFILE, QUICK_START, TRACE

with frame.telling():
    page.show(frame.open_page("Models", TRACE, PROFILE, PARTITION, QUICK_START, apart=upload.told_in_form))
