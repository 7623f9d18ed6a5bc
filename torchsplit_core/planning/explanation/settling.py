"""Questions answered within a deadline: all are bounded by relaxations first, then planned, the most telling first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torchsplit_core.planning.explanation.planner_process import WORKERS, PlannerProcesses
from torchsplit_core.planning.explanation.questions import FIRST, LAST, Question, Questions
from torchsplit_core.planning.explanation.relaxation_bound import RelaxationBound, relaxation_bound
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import first_level_objective, goal_of
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.values import PlanOutcome, PlanRequest, Progress

MIN_SHARE_S = 0.4
"""Least seconds for which a request is planned: a few answers are worth more than many open ones."""

MOST_TELLING = 10
"""Questions that get EFFORT_FACTOR times what the plan took, if that is there; the others get what is left."""

EFFORT_FACTOR = 2.0
"""A harder request, or a busier machine."""

FIRST_SHARE = 0.7
"""Part of that for questions that bound others: all of them are asked before any other."""

MAX_ATTEMPTS = 6
"""Times a request is planned, each time in twice the seconds, without one more level proven."""

MAX_BOUND_S = 2.0
"""Most seconds for a bound by linear relaxation; it takes milliseconds, except on a busy machine."""

OutcomeCallback = Callable[[PlanRequest, PlanOutcome], None]


def ignore_outcome(request: PlanRequest, outcome: PlanOutcome) -> None:
    """Ignore plans of changed requests."""


@dataclass
class Settling:
    """The search for answers; `effort_s` is what the plan took, `on_outcome` gets every plan of a changed request."""

    questions: Questions
    planners: PlannerProcesses[Question]
    effort_s: float
    on_outcome: OutcomeCallback = ignore_outcome
    relaxation: RelaxationBound | None = None

    def bound(self, question: Question, known: int = 0) -> RelaxationBound | None:
        """Bound a question by the linear relaxation after its `known` levels, if there is time for it."""
        question.relaxed_level = known
        left = self.planners.remaining_s
        if not left:
            return None
        relaxation = relaxation_bound(question.request, min(MAX_BOUND_S, left), question.lower[:known])
        if relaxation is None:
            return None
        limit = -relaxation.bound if goal_of(question.request).minimised else relaxation.bound
        # A relaxation may be below a plan within the solver's tolerance.
        reached = question.lower[known] if known < len(question.lower) else limit
        question.take_bound((*question.lower[:known], max(limit, reached)))
        base = None if self.relaxation is None else self.relaxation.bound
        if known == 0 and base:
            question.telling = abs(relaxation.bound - base) / abs(base)
        return relaxation

    def recall(self, known: Callable[[PlanRequest], PlanOutcome | None]) -> None:
        """Take plans that are known already."""
        for question in filter(lambda item: item.writable, self.questions.changed):
            for first_level in {False, question.level_count > 1}:
                request = _asked(question, first_level=first_level)
                outcome = known(request) if self.planners.remaining_s else None
                if outcome is not None:
                    question.take_outcome(outcome)
        self.questions.spread()

    def run(self, progress: Progress) -> None:
        """Plan the changed requests until all questions are settled or time is over."""
        questions, planners = self.questions, self.planners
        most_telling_s = min(EFFORT_FACTOR * self.effort_s, WORKERS * planners.remaining_s / MOST_TELLING)
        while planners.remaining_s:
            open_questions = questions.unsettled()
            waiting = [
                item
                for item in open_questions
                if item not in planners.subjects
                and item.attempts < (1 if item.order == LAST else MAX_ATTEMPTS)
            ]
            while waiting and planners.free:
                question = waiting.pop(0)
                effort_s = most_telling_s * (FIRST_SHARE if question.order == FIRST else 1.0)
                seconds = max(MIN_SHARE_S, effort_s * 2**question.attempts)
                if question.order != LAST:
                    seconds = max(seconds, WORKERS * planners.remaining_s / len(open_questions))
                # All levels take much longer than the first, which is often enough.
                first = question.level_count > 1 and not question.proven
                planners.submit(
                    question, _asked(question, first_level=first), seconds, relaxes=question.relaxes
                )
            if not planners.subjects:
                return
            unbounded = next((item for item in open_questions if item.lacks_bound), None)
            if unbounded is not None:
                self.bound(unbounded, unbounded.proven)
            for question, request, outcome in planners.answers(block=unbounded is None):
                self._take(question, request, outcome)
            questions.spread()
            settled = sum(item.settled(questions.plan) for item in questions.changed)
            progress(
                0.95 * settled / len(questions.changed),
                f"{settled} of {len(questions.changed)} questions settled",
            )

    def _take(self, question: Question, request: PlanRequest, outcome: PlanOutcome | None) -> None:
        proven = question.proven
        if outcome is not None:
            question.take_outcome(outcome)
            if outcome.gpus and question.writable:
                self.on_outcome(request, outcome)
                self._try_stricter(question, request, outcome)
        if question.proven == proven:
            question.attempts += 1

    def _try_stricter(self, question: Question, request: PlanRequest, outcome: PlanOutcome) -> None:
        """A plan without a limit may keep an eased one; then it answers that question too."""
        first_level = request.objective != question.request.objective
        for stricter, easier in self.questions.limits:
            if easier is not question or stricter.settled(self.questions.plan):
                continue
            asked = _asked(stricter, first_level=first_level)
            same = replace(outcome, request_sha256=request_hash(asked))
            if not any(violations(asked, same)):
                stricter.take_outcome(same)
                self.on_outcome(asked, same)


def without_tie_breaks(request: PlanRequest) -> PlanRequest:
    """Without soft co-locations that only break ties: they change no level and take much time."""
    if request.objective.separation_weight > 0:
        return request
    return replace(request, colocations=tuple(item for item in request.colocations if item.mode == "hard"))


def _asked(question: Question, *, first_level: bool) -> PlanRequest:
    request = question.request
    if not first_level:
        return request
    return replace(request, objective=first_level_objective(request.objective))
