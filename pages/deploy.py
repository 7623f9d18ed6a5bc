"""Deploy: which files make this plan real?"""

from app import deploy_view, frame

with frame.telling():
    deploy_view.show(frame.open_page("Deploy"))
