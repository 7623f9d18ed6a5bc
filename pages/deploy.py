"""Deploy: which files make this plan real?"""

from app.plan.deploy import page
from app.shell import frame

with frame.telling():
    page.show(frame.open_page("Deploy"))
