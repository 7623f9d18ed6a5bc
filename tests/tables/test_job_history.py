"""Job histories: what Slurm and DCGM write, each job once, hours against brute force and Little's law, holes."""

import csv
import io
import random
import re
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest

from tests.support.paths import EXAMPLES
from tools import example_history
from torchsplit_core.files import read_file
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.tables.job_history import request_demand
from torchsplit_core.tables.job_history.hourly_figures import (
    ALL,
    hour_rows,
    hour_series,
    hours_csv,
    mean_duration_s,
    p95,
)
from torchsplit_core.tables.job_history.job_classes import class_name, jobs_by_class
from torchsplit_core.tables.job_history.observed_hours import observed_hours
from torchsplit_core.tables.job_history.read_files import read_history
from torchsplit_core.tables.job_history.records import GpuJob, JobHistory
from torchsplit_core.values import InputFault

HEADER = "JobID|JobName|User|Account|Partition|Submit|Start|End|Elapsed|State|AllocTRES"
GPU = "cpu=8,gres/gpu:a100=2,gres/gpu=2,node=1"
CLOCK = re.compile(r"\d\d:\d\d:\d\d")
MONDAY = datetime(2026, 3, 2, tzinfo=UTC).timestamp()


def row(
    job="7",
    name="bert-1",
    submit="08:00:00",
    start="08:00:10",
    end="10:30:00",
    state="COMPLETED",
    tres=GPU,
    day=2,
    elapsed="",
):
    """A row of sacct on a day of March; a clock stands for a time of that day."""
    times = (f"2026-03-{day:02}T{time}" if CLOCK.fullmatch(time) else time for time in (submit, start, end))
    return "|".join([job, name, "ann", "lab", "gpu", *times, elapsed, state, tres])


def history(*rows, header=HEADER, **options):
    return read_history([("jobs.csv", "\n".join([header, *rows]) + "\n")], **options)


def job_of(*rows, **options):
    (job,) = history(*rows, **options).jobs
    return job


# Slurm


def test_a_job_of_sacct():
    job = job_of(row())
    assert (job.submit, job.start, job.end) == (
        MONDAY + 8 * 3600,
        MONDAY + 8 * 3600 + 10,
        MONDAY + 10.5 * 3600,
    )
    assert job.devices == (("a100", 2),) and job.device_count == 2
    assert job.labels == {"job-name": "bert-1", "user": "ann", "account": "lab", "partition": "gpu"}


@pytest.mark.parametrize(("tres", "devices"), [
    ("gres/gpu=1", (("", 1),)), ("gres/gpu:1g.10gb=3,gres/gpu=3", (("1g.10gb", 3),)),
    ("gres/gpu=3,gres/gpu:a100=1,gres/gpu:h100=2", (("a100", 1), ("h100", 2))),
    ("gpu:a100:2", (("a100", 2),)), ("gpu:2", (("", 2),)), ("gpu:a100:2(S:0-1)", (("a100", 2),)),
    ("gres/gpumem=80G,gres/gpu=1", (("", 1),)),
])  # fmt: skip
def test_gpus_and_slices_of_tres(tres, devices):
    assert job_of(row(tres=tres)).devices == devices


def test_steps_cpu_jobs_and_jobs_that_never_started_are_left_out_and_counted():
    read = history(
        row(), row("7.batch", "batch", tres="cpu=8"), row("7.0"), row("8", tres="cpu=4"), row("9", tres=""),
        row("10", start="None", end="09:00:00", state="CANCELLED by 1000"),
        row("11", start="09:00:00", end="09:00:00", state="CANCELLED", elapsed="00:00:00"),
    )  # fmt: skip
    assert [job.job_id for job in read.jobs] == ["7"]
    assert "2 jobs asked for no GPU and are left out" in read.notes
    assert "2 jobs were cancelled before they started and are left out" in read.notes


def test_jobs_that_wait_or_run_have_no_end():
    read = history(
        row("1_[3-9,12,20-30:5%2]", start="Unknown", end="Unknown", state="PENDING"),
        row("1_2", end="Unknown", state="RUNNING", elapsed="01:00:00"), row("2", end="Unknown", state="SUSPENDED"),
    )  # fmt: skip
    by_id = {job.job_id: job for job in read.jobs}
    waiting = by_id["1_[3-9,12,20-30:5%2]"]
    assert (waiting.tasks, waiting.start, waiting.end) == (11, None, None)
    assert by_id["1_2"].end is None and by_id["1_2"].start and by_id["2"].end is None


def test_a_job_without_end_that_has_ended_takes_its_elapsed_time():
    job = job_of(row(end="Unknown", state="TIMEOUT", elapsed="1-02:00:01"))
    assert job.end - job.start == 26 * 3600 + 1


def test_times_with_and_without_a_zone():
    for text in ("2026-03-02T09:00:00+01:00", "2026-03-02 08:00:00Z", "1772438400", "2026-03-02T03:00-0500"):
        assert job_of(row(submit=text)).submit == MONDAY + 8 * 3600, text
    berlin = ZoneInfo("Europe/Berlin")
    read = history(row(), zone=berlin)
    assert read.jobs[0].submit == MONDAY + 7 * 3600 and not any("zone" in note for note in read.notes)
    assert any("taken as UTC" in note for note in history(row()).notes)
    # Summer time ended at 3:00 on 25 October: the end lies in the hour's second pass.
    long = row(submit="2026-10-25T02:40:00", start="2026-10-25T02:50:00", end="2026-10-25T02:10:00")
    job = job_of(long, zone=berlin)
    assert job.end - job.start == 20 * 60


def test_exports_that_overlap_give_each_job_once_in_its_latest_state():
    running = row(end="Unknown", state="RUNNING")
    texts = [("a", f"{HEADER}\n{row()}\n{row('8')}\n"), ("b", f"{HEADER}\n{running}\n{row('8')}\n")]
    for order in (texts, texts[::-1]):
        read = read_history(order)
        assert sorted((job.job_id, job.end) for job in read.jobs) == [
            ("7", MONDAY + 10.5 * 3600), ("8", MONDAY + 10.5 * 3600),
        ]  # fmt: skip
        assert any(note.startswith("2 rows repeat") for note in read.notes)


def test_commas_a_last_bar_and_plain_quotes():
    times = ",".join(f"2026-03-02T{clock}" for clock in ("08:00", "08:00", "09:00"))
    comma = f'JobID,JobName,Submit,Start,End,ReqTRES\n7,"bert,1",{times},"gres/gpu=1,cpu=2"\n'
    (job,) = read_history([("f", comma)]).jobs
    assert job.labels == {"job-name": "bert,1"} and job.devices == (("", 1),)
    job = job_of(row(name='say "hi') + "|", header=HEADER + "|")
    assert job.labels["job-name"] == 'say "hi'


@pytest.mark.parametrize(("text", "said"), [
    ("", "f: is empty"),
    (HEADER + "\n", "f: has a header but no rows"),
    ("a,b\n1,2\n", "f: is neither a table of jobs nor of samples: its header is 'a, b'"),
    ("JobID|Submit|Start\n1|x|y\n", "f: header: has no column end"),
    (f"{HEADER}\n{row(start='08:00:00', end='07:00:00')}\n",
     "line 2, End: is 2026-03-02T07:00:00, before the start at 2026-03-02T08:00:00. Correct one."),
    (f"{HEADER}\n{row(submit='2026-02-30T00:00:00')}\n", "line 2, Submit: is '2026-02-30T00:00:00', no date"),
    (f"{HEADER}\n{row(submit='soon')}\n", "line 2, Submit: is 'soon', not a time"),
    (f"{HEADER}\n{row(submit='9999999999')}\n", "line 2, Submit: is '9999999999', not between 1970 and 2100"),
    (f"{HEADER}\n{row(end='Unknown')}\n", "line 2, End: is 'Unknown', and the job is COMPLETED"),
    (f"{HEADER}\n{row('1_[1-5,...]')}\n", "line 2, JobID: is '1_[1-5,...]', whose tasks cannot be counted"),
    (f"{HEADER}\n{row('1_[0-99999999]')}\n", "line 2, JobID: stands for 100,000,000 tasks"),
    (f"{HEADER}\n{row('x')}\n", "line 2, JobID: is 'x', not a job's id"),
    (f"{HEADER}\n{row(elapsed='5 h', state='RUNNING')}\n", "line 2, Elapsed: is '5 h', not a duration"),
    (f"{HEADER}\n{row(tres='cpu=1')}\n", "f: has no job that asked for a GPU (rows left out: no GPU: 1)"),
    ("timestamp,gpu,GPUTL\n2026-03-02T08:00Z,0,187\n", "line 2, GPUTL: is 187, above 100. Give per cent"),
    ("timestamp,gpu,SMACT\n2026-03-02T08:00Z,0,45\n", "line 2, SMACT: is 45, above 1. Give a share from 0 to 1"),
    ("gpu,SMACT\n0,0.5\n", "f: header: has no column timestamp"),
    ("timestamp,gpu,SMACT\n2026-03-02T08:00Z,0,0.5\n", "f: has no job that asked for a GPU. Give"),
])  # fmt: skip
def test_bad_input_is_one_message(text, said):
    with pytest.raises(InputFault) as caught:
        read_history([("f", text)])
    assert said in str(caught.value)


def test_bad_rows_are_left_out_on_demand():
    read = history(row(), row("8", submit="soon"), skip_bad=True)
    assert [job.job_id for job in read.jobs] == ["7"]
    assert any("line 3, Submit: is 'soon'" in note for note in read.notes)


def test_a_huge_table_is_refused_by_its_size():
    with pytest.raises(InputFault, match="more than 4,000,000"):
        read_history([("f", "JobID|Submit|Start|End\n" + "1|||\n" * 1_000_001)])


# Classes


@pytest.mark.parametrize(("name", "expected"), [
    ("bert-17", "bert"), ("bert_2.5", "bert"), ("resnet50", "resnet50"), ("resnet50_003", "resnet50"),
    ("run #12", "run"), ("sweep[4]", "sweep"), ("42", "42"), ("llama-7b", "llama-7b"), ("", "(none)"),
])  # fmt: skip
def test_classes_by_name(name, expected):
    assert class_name(job_of(row(name=name)), "job-name") == expected


def test_classes_by_other_columns_and_too_many_of_them():
    jobs = history(row(), row("8", tres="gres/gpu:1g.10gb=1,gres/gpu=1"), row("9", tres="gres/gpu=1")).jobs
    assert list(jobs_by_class(jobs, "gres")) == ["1g.10gb", "a100", "gpu"]
    assert [list(jobs_by_class(jobs, key)) for key in ("account", "partition", "user")] == [
        ["lab"],
        ["gpu"],
        ["ann"],
    ]
    bare = history("7|2026-03-02T08:00|Unknown|Unknown", header="JobID|Submit|Start|End").jobs
    for key, column in (("account", "Account"), ("job-name", "JobName"), ("gres", "AllocTRES")):
        with pytest.raises(InputFault, match=f"is {key}, and a table has no column {column}"):
            jobs_by_class(bare, key)
    names = [row(str(number), f"n{number}") for number in range(501)]
    with pytest.raises(InputFault, match="gives 501 classes, more than 500"):
        jobs_by_class(history(*names).jobs, "job-name")


# Hours


def drawn(rng, days=3, count=60):
    """Jobs that start and end within the days."""
    jobs = []
    for number in range(count):
        submit = MONDAY + rng.randrange(days * 86400 - 7200)
        start = submit + rng.choice((0, rng.randrange(3600)))
        end = min(
            start + rng.choice((0, rng.randrange(1, 600), rng.randrange(1, 100_000))), MONDAY + days * 86400
        )
        jobs.append(
            GpuJob(
                str(number),
                "",
                submit,
                start,
                max(start, end),
                1,
                {"job-name": "a"},
                (("", rng.randint(1, 4)),),
            )
        )
    return jobs


def whole(jobs, days=3):
    hours = frozenset(range(int(MONDAY // 3600), int(MONDAY // 3600) + days * 24))
    return observed_hours(JobHistory(tuple(jobs), (), hours, ()), MONDAY, MONDAY + days * 86400)


@pytest.mark.parametrize("seed", range(8))
def test_hours_are_what_brute_force_counts(seed):
    rng = random.Random(seed)
    jobs = drawn(rng)
    observed = whole(jobs)
    series = hour_series(jobs, observed)
    for at, hour in enumerate(observed.hours):
        inside = [max(0, min(job.end, (hour + 1) * 3600) - max(job.start, hour * 3600)) for job in jobs]
        assert series.job_s[at] == sum(inside)
        assert series.device_s[at] == sum(s * job.device_count for s, job in zip(inside, jobs, strict=True))
        assert series.arrivals[at] == sum(hour * 3600 <= job.submit < (hour + 1) * 3600 for job in jobs)


@pytest.mark.parametrize("seed", range(8))
def test_littles_law_ties_arrivals_durations_and_jobs_in_progress(seed):
    jobs = drawn(random.Random(seed))
    observed = whole(jobs)
    series, seconds = hour_series(jobs, observed), len(observed.hours) * 3600
    in_progress = Fraction(sum(map(Fraction, series.job_s)), seconds)
    arrivals = Fraction(sum(series.arrivals), seconds)
    assert in_progress == arrivals * sum(Fraction(job.end - job.start) for job in jobs) / len(jobs)
    assert mean_duration_s(jobs) == pytest.approx(float(in_progress / arrivals), rel=1e-12)
    rows = hour_rows({"a": jobs}, (), observed, "job-name")
    by_hour = [row for row in rows if row.job_class == ALL]
    assert sum(row.jobs_in_progress_mean for row in by_hour) / 24 == pytest.approx(float(in_progress))
    assert sum(row.arrivals_per_s_mean for row in by_hour) / 24 == pytest.approx(float(arrivals))


def test_a_running_job_is_in_progress_to_the_end_and_its_duration_is_not_known():
    (job,) = drawn(random.Random(0), count=1)
    running = replace(job, start=MONDAY + 86400, end=None)
    observed = whole([running])
    assert sum(hour_series([running], observed).job_s) == 2 * 86400
    assert mean_duration_s([running]) is None


def test_days_without_a_row_are_holes_and_not_zeros():
    rows = [row(str(day), start="08:00:00", end="08:30:00", day=day) for day in (2, 3, 6, 8)]
    pending = row("99", submit="01:00:00", start="None", end="None", state="PENDING", tres="cpu=1", day=5)
    read = history(*rows, pending)
    observed = observed_hours(read)
    # A job without GPU shows that the accounting ran on the fifth.
    assert observed.holes == ("2026-03-04", "2026-03-07")
    assert len(observed.hours) == 16 + 24 + 24 + 24 + 9
    rows = hour_rows(jobs_by_class(read.jobs, "job-name"), (), observed, "job-name")
    eight = next(row for row in rows if row.hour == 8)
    assert (eight.observed_days, eight.jobs) == (5, 4)
    assert eight.arrivals_per_s_mean == 4 / 5 / 3600 and eight.jobs_in_progress_mean == 0.4
    short = observed_hours(read, MONDAY + 8 * 3600 + 1, MONDAY + 11 * 3600)
    assert [hour % 24 for hour in short.hours] == [9, 10]
    for figures in hour_rows({"a": read.jobs}, (), short, "job-name"):
        assert (figures.arrivals_per_s_mean is None) == (figures.hour not in (9, 10))
    assert "\na,3,0,0,,,,,,,,,\n" in hours_csv(hour_rows({"a": read.jobs}, (), short, "job-name"))


def test_a_history_of_a_hundred_years_and_one_without_an_hour():
    with pytest.raises(InputFault, match="goes from 1971-01-01 to 2026-03-03, more than 1100 days"):
        observed_hours(history(row(), row("8", submit="1971-01-01T00:00:00")), end=MONDAY + 86400)
    with pytest.raises(InputFault, match="has no whole observed hour"):
        observed_hours(history(row()), MONDAY + 60, MONDAY + 3600)


def test_a_percentile_is_linear_between_neighbours():
    assert p95([]) is None and p95([3.0]) == 3.0
    assert p95([float(value) for value in range(101)]) == pytest.approx(95)
    assert p95([0.0, 1.0]) == pytest.approx(0.95)


# DCGM


SAMPLES = """timestamp,Hostname,gpu,hpc_job,DCGM_FI_DEV_GPU_UTIL,DCGM_FI_PROF_SM_ACTIVE,DCGM_FI_DEV_FB_USED
2026-03-02T08:10:00Z,n,0,7,80,0.5,2048
2026-03-02T08:20:00Z,n,0,7,40,N/A,9223372036854775794
2026-03-02T08:20:00Z,n,1,,0,2147483632,
2026-03-02T08:20:00Z,n,1,,0,,
2026-03-02T23:20:00Z,n,1,7,100,,
"""


def test_samples_count_for_the_class_of_their_job_and_all_for_all():
    read = read_history([("jobs", f"{HEADER}\n{row()}\n{row('8', 'ocr')}\n"), ("dcgm", SAMPLES)])
    observed = observed_hours(read)
    figures = {
        (row.job_class, row.hour): (row.gpu_utilisation_mean, row.sm_active_mean, row.memory_gib_mean)
        for row in hour_rows(jobs_by_class(read.jobs, "job-name"), read.samples, observed, "job-name")
    }
    assert figures["bert", 8] == pytest.approx((0.6, 0.5, 2.0))
    assert figures["ocr", 8] == (None, None, None)
    # The second GPU's row stands twice and is one sample.
    assert figures[ALL, 8] == pytest.approx((0.4, 0.5, 2.0))
    assert figures[ALL, 23] == figures["bert", 23] == (None, None, None), "not an observed hour"


def test_a_sample_may_name_the_raw_id_of_an_array():
    header = "JobID|JobIDRaw|JobName|Submit|Start|End"
    jobs = f"{header}\n7_3|10|bert|2026-03-02T08:00|2026-03-02T08:00|2026-03-02T09:00\n"
    read = read_history(
        [("j", jobs), ("d", "timestamp,uuid,smact,job_id\n2026-03-02T08:10Z,GPU-1,0.25,10\n")]
    )
    rows = hour_rows(jobs_by_class(read.jobs, "job-name"), read.samples, observed_hours(read), "job-name")
    assert next(row.sm_active_mean for row in rows if (row.job_class, row.hour) == ("bert", 8)) == 0.25


# Demand of a request


@pytest.fixture(scope="module")
def asked():
    return read_file(EXAMPLES / "plan_request.json")[1]


def windows(text):
    return request_demand.parse_windows(text)


def test_windows_have_mean_and_p95_of_their_hours_and_samples_are_joint(asked):
    hours = range(5 * 24, 7 * 24)
    rates = {
        "bert": [hour % 24 / 10 for hour in hours],
        "resnet50": [1.0 if hour < 144 else 3.0 for hour in hours],
    }
    filled, notes = request_demand.with_demand(asked, rates, hours, windows("day=08:00-20:00,20:00-08:00"))
    validate(filled)
    bert, mobile, resnet = filled.models
    day, night = bert.demand_windows
    assert (day.name, night.name) == ("day", "20:00-08:00")
    assert day.demand_rps.mean == pytest.approx(sum(range(8, 20)) / 120)
    of_night = sorted([*range(8), *range(20, 24)] * 2)
    assert night.demand_rps.p95 == pytest.approx(p95(of_night) / 10)
    assert (
        resnet.demand_windows[0].demand_rps.mean == 2 and resnet.demand_samples == (1.0,) * 24 + (3.0,) * 24
    )
    assert [window.demand_rps for window in mobile.demand_windows] == [mobile.demand_rps] * 2
    assert mobile.demand_samples == () and notes == (
        "mobilenetv2 has no class of jobs: its demand_rps stands in every window",
    )  # fmt: skip
    assert [model.demand_rps for model in filled.models] == [model.demand_rps for model in asked.models]
    peak, notes = request_demand.with_demand(
        asked, {**rates, "mobilenetv2": [0.0] * 48}, hours, windows("00:00-12:00,12:00-24:00"), peak=True
    )
    assert peak.models[0].demand_rps == pytest.approx(p95(sorted([*range(12, 24)] * 2)) / 10)
    assert peak.models[1].demand_rps == asked.models[1].demand_rps
    assert notes == ("mobilenetv2 had no job in the observed hours: its demand_rps stays",)


def test_a_window_that_was_never_observed_is_not_a_zero(asked):
    with pytest.raises(InputFault, match="no hour of the window '18:00-24:00' was observed"):
        request_demand.with_demand(
            asked, {"bert": [1.0] * 18}, range(18), windows(request_demand.DEFAULT_WINDOWS)
        )


def test_jobs_that_are_no_requests_of_the_points_are_named(asked):
    longest = max(point.latency_ms for point in asked.models[0].points) / 1000
    assert request_demand.unit_warnings(asked, {"bert": longest * 9, "resnet50": 0.01}) == ()
    (warning,) = request_demand.unit_warnings(asked, {"bert": longest * 11})
    assert warning.startswith("bert: a job takes ")
    (warning,) = request_demand.unit_warnings(asked, {"bert": 1e-5})
    assert "not one of such requests" in warning


def test_the_example_is_the_generated_one_and_its_table_has_every_class_and_hour():
    texts = dict(zip(("sacct", "dcgm"), example_history.history(), strict=True))
    texts["job_profiles"] = example_history.job_profiles()
    for name, text in texts.items():
        assert (EXAMPLES / "history" / f"{name}.csv").read_text() == text
    read = read_history([(name, texts[name]) for name in ("sacct", "dcgm")])
    observed = observed_hours(read)
    assert observed.holes == (f"2026-03-{2 + example_history.HOLE:02}",)
    rows = list(csv.DictReader(io.StringIO(
        hours_csv(hour_rows(jobs_by_class(read.jobs, "job-name"), read.samples, observed, "job-name"))
    )))  # fmt: skip
    assert {row["job_class"] for row in rows} == {*example_history.JOBS, ALL}
    assert len(rows) == 24 * (len(example_history.JOBS) + 1)
    assert sum(int(row["jobs"]) for row in rows) == 2 * len(read.jobs)
