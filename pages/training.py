"""A training: how is a model trained on a fleet?"""

from app.object_pages import request_page
from app.session.result_kind import TRAINING
from app.shell import frame
from app.trainings import page

with frame.fault_boundary():
    request_page.render(TRAINING, "Train", page.render)
