"""Sections of docs/benchmarks.md in their order, each with the script that prints it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Benchmark:
    """A script that prints a table and ends with 1 where there is a fault; `quick`: arguments for a short trial."""

    title: str
    module: str
    about: str
    quick: tuple[str, ...] = ()


BENCHMARKS = (
    Benchmark(
        "Where the time of the main job goes",
        "benchmarks.stage_times",
        "Shares of the wall time per sample model at real dimensions; the whole in seconds.",
        ("--size", "small", "--models", "diamond"),
    ),
    Benchmark(
        "What measuring costs",
        "benchmarks.profile_cost",
        "A profile of ResNet-50 at real dimensions over five batch sizes (end to end, measured peaks, every operation) "
        "against the same number of runs at the same batch sizes without any of it, in the same process; and how "
        "much of a run its operations account for, each the median of the runs in which they were timed.",
        ("--size", "small", "--turns", "1", "--samples", "bert"),
    ),
    Benchmark(
        "A profile against a plain loop",
        "benchmarks.profile_rates",
        "Five models of `benchmarks/small_models.py` that take microseconds to milliseconds, on this processor: the "
        "loop in a process of its own, the profile, the loop again, medians of three turns. Goal: within 5 % of the "
        "loop. The last column is how often the profile's 90 % interval held the rate of the loop behind it.",
        ("--turns", "1", "--seconds", "0.2"),
    ),
    Benchmark(
        "Graph algorithms at scale",
        "benchmarks.graph_algorithms",
        "Seconds of processor time, every graph in a process of its own. Dominators: *build* leads from ids and "
        "edges to the graph that is walked (integers here, a DiGraph in networkx), *find* from there to the "
        "immediate dominator of every value, *all, named* from ids and edges to a dict of ids, which must equal "
        "networkx's; below a million values medians of five turns, taken alternately. Regions include one look at "
        "every region; preparation starts from a trace in memory, and its peak counts that.",
        ("--sizes", "2000", "--turns", "1"),
    ),
    Benchmark(
        "Hugging Face architectures",
        "benchmarks.huggingface_coverage",
        "Model classes of transformers as they are, with random weights at toy dimensions (two layers or so), traced "
        "with a free batch. Seconds are one export and its description; cut points are those of the whole model "
        "at these sizes, where masks weigh as much as activations. A refusal is what its user reads.",
        ("--only", "BERT", "LLaMA", "--at-least", "2"),
    ),
    Benchmark(
        "Roofline estimates against measured A100 slices",
        "benchmarks.roofline_calibration",
        "The estimator's constants and its 90 % interval come from this comparison.",
    ),
    Benchmark(
        "Predicted against measured peak memory",
        "benchmarks.memory_accuracy",
        "Peaks of one run on this CPU: predicted from the graph alone, measured as bytes that torch's allocator "
        "handed out. Goals: transformers (CLIP, BERT, LLaMA) within 10 %, convolutions (FastPitch, OCR, ResNet-50) "
        "within 25 %. Without weights is the harder comparison. The resident set grew in the first run of the largest "
        "batch, of what the allocator handed out in it: the rest is what malloc keeps of freed "
        "blocks, generated kernels, packed matrices and the like.",
        ("--size", "small", "--models", "diamond", "--batches", "1"),
    ),
    Benchmark(
        "Curves on rows of the library that they did not see",
        "benchmarks.curve_accuracy",
        "Throughput predicted by `torchsplit_core.curves`, single-process rows unless said otherwise. First with the "
        "constants that stand in the product, then with constants fitted without the model being judged. The interval "
        "is meant to hold 90 %; *high / low* is its median width. Then the constants, and the rows that are flagged.",
        ("--models", "resnet50", "vgg19"),
    ),
    Benchmark(
        "Estimates of one GPU type from another",
        "benchmarks.type_transfer",
        "`estimate --to` against official MLPerf results (v0.7, v1.0, v1.1; A100, A30 and T4; int8 and fp16; not "
        "verified by MLCommons what is made of them here): from SingleStream and Offline of one type, whole and "
        "sliced where there are both, "
        "those of another. The error is |estimated / measured - 1|. *Inside*: of the 90 % interval, calibrated without "
        "any result that joins the two types; *spread* is what that calibration found. Nothing here checks H100, L4 or "
        "V100.",
    ),
    Benchmark(
        "The explorer in Chromium",
        "benchmarks.explorer_speed",
        "The dashboard and, in the same run, a page with nothing but `st.graphviz_chart` of the same graph (10,000 "
        "equal operations without modules, every one drawn), each after a small graph of the same kind. Medians of "
        "three turns, each with a graph or file of its own; graphviz once. A redraw is the whole graph in view, "
        "pixels read back, panels included.",
        ("--nodes", "300", "--layers", "2", "--repeats", "1", "--largest", "5000"),
    ),
    Benchmark(
        "The search for partitions",
        "benchmarks.partition_search",
        "Least maximal load: the public costed graphs, random small graphs against brute force, and graphs of 1,000 "
        "and 10,000 nodes for six devices with 60 s each; the gap is to a proven bound.",
        ("--random", "40", "--sizes", "200", "--seconds", "3"),
    ),
    Benchmark(
        "Cuts against torch's evenly spread split points",
        "benchmarks.pipeline_split",
        "Largest load of a stage for k devices with a link of 12 GB/s: our best cut with its proven gap; what "
        "`torch.distributed.pipelining` makes of split points spread evenly over the model's blocks (over their "
        "submodules where the blocks are too few); the operations spread evenly. All are charged the same operation "
        "times, measured here at batch 2. A ratio above 1: that split's slowest stage is so much slower than ours.",
        ("--models", "diamond", "--large", "--counts", "2", "--seconds", "2"),
    ),
    Benchmark(
        "The planner against a look at every plan",
        "benchmarks.planner_oracle",
        "Random small requests with every feature of the contract; equal means equal in the sorted vector "
        "(leximin) or value within 1e-6. With shares and all features no such look exists: nothing worse than "
        "the best whole-slice plan may come out.",
        ("--exclusive", "8", "--fractional", "4", "--at-least", "4", "--linked", "4", "--linked-shares", "4"),
    ),
    Benchmark(
        "The planner against the literal formulation",
        "benchmarks.planner_ratios",
        "Exclusive max_min on requests drawn from the measured library. Literal: one binary for each GPU and "
        "layout, one count for each model, GPU and profile (`benchmarks/literal_planner.py`), in Pyomo on the "
        "same HiGHS with the same tolerances and one thread; stopped at 60 s it counts as 60 s. Medians of "
        "three turns.",
        ("--sizes", "4x2", "--seeds", "0", "--repetitions", "1", "--seconds", "10"),
    ),
    Benchmark(
        "The planner at scale",
        "benchmarks.planner_scale",
        "Leximin on requests drawn from the measured library, each in a process of its own, whose peak memory "
        "is given. Bound and gap speak of the first level that is not proven; the search gets 95 % of the time.",
        ("--cases", "4x2:exclusive:5", "4x2:fractional:5"),
    ),
    Benchmark(
        "Mixed fleets at scale",
        "benchmarks.planner_fleets",
        "64 models with random curves on fleets of three and five GPU types, five seeds a family, each request in a "
        "process of its own, one after the other. After 2 s: the value that stood then over the last one.",
        ("--families", "three types", "least cost", "--size", "6", "4", "2", "--seeds", "1"),
    ),
    Benchmark(
        "Threads of a search",
        "benchmarks.search_threads",
        "Shares with hard co-locations on few GPUs, from the same plan of whole slices, with one thread and with one "
        "for each core: the same seconds and the same bound, in turns. Levels are in units of the plan of whole "
        "slices.",
        ("--seeds", "--seconds", "0.5"),
    ),
    Benchmark(
        "Demand samples",
        "benchmarks.demand_samples",
        "16 models on 64 GPUs with 1,440 joint demand samples, five seeds a family, 30 s a request, each in a process "
        "of its own, one after the other. Families differ in GPU types, correlation (-0.3 to 0.9), spread and what is "
        "asked: the fewest GPUs for a share of the samples, or the largest share. Peak: the GPUs that hold the largest "
        "entry of every model at once (n/a: more than there are). Unseen: as many samples again of the same draw.",
        ("--size", "3", "3", "60", "3", "--seeds", "1"),
    ),
    Benchmark(
        "LLMs in plans",
        "benchmarks.llm_plans",
        "LLMs and batch models with random rates on nodes of eight A100-80GB and H100 whose MIG mode the plan decides "
        "on, groups of 2, 4 and 8 among the points; a process for each request. Then requests of examples/llm, their "
        "engines simulated, every demand a minimum: fewest GPUs against a whole GPU for each instance (where MIG is on "
        "its largest slice, for an LLM that fits none the smallest group), and the smallest slice on which an instance "
        "runs, packed first fit.",
        ("--families", "--examples", "70b_on_groups"),
    ),
    Benchmark(
        "A day planned",
        "benchmarks.day_plans",
        "Days of 24 windows for 16 models on 64 A100-80GB, each model's demand a cosine of its own: goal 60 s. Then "
        "the rates of production services (alibaba/ServeGen, Apache-2.0) on measured models of the A100 library, "
        "scaled to 32 GPUs: windows cut from the trace at least cost, every demand a minimum, fewest GPUs; one plan; "
        "and a rule that keeps utilisation at a target by the load of ten minutes before, changes at no loss and packs "
        "first fit. Served: of the requests of the trace, step by step, less what transitions lose (estimated). To the "
        "request (`simulate DAY --trace`): the same day under the response-time objectives of the published mixes, "
        "with queues, batches, the steps of changes and replicas that take 20 s to start; the share of requests "
        "answered within them, all models together, in and outside of changes, sampled.",
        (
            "--kinds",
            "min_gpus",
            "--size",
            "2",
            "3",
            "4",
            "--seconds",
            "4",
            "--day-seconds",
            "2",
            "--windows",
            "2",
            "--requests",
            "1000",
        ),
    ),
    Benchmark(
        "From one plan to the next",
        "benchmarks.transition_losses",
        "Random fleets of three GPU types planned twice, with every demand multiplied by 0.5 to 2 in between, medians "
        "over the seeds. Rewriting: each GPU whose instances differ is emptied and made anew, in the order of ids. "
        "Seconds of steps are those of docs/file-formats.md, the same on both sides; the ratio is of the worst model's "
        "model-seconds below demand, rewriting over transition, where the transition loses any.",
        ("--sizes", "4x4", "--seeds", "1"),
    ),
    Benchmark(
        "Explanations settled in 20 s",
        "benchmarks.plan_explanation",
        "Questions of a plan's explanation (changes, limits of models, layouts) whose effect is proven after 20 s, in "
        "two processes, and those that are at least between a plan and a proven bound; the published mix on five "
        "A100, and mixed fleets of random curves over five seeds. Width: of the ten questions whose effect at the "
        "first level may be largest, the distance of plan and bound as a share of the value before the change.",
        ("--families", "three types", "--seeds", "1", "--seconds", "3"),
    ),
    Benchmark(
        "Planning again after one change",
        "benchmarks.planner_replan",
        "Twenty single changes (a demand, a weight, a GPU more or less, a minimum, a cap, a point less, a latency "
        "limit, a model less) of one leximin request, in one process after a first plan.",
        ("--size", "4x2"),
    ),
    Benchmark(
        "The Plan page in Chromium",
        "benchmarks.plan_page_speed",
        "Each move is one key on the slider of a model's demand, timed in the page until the picture of the slices has "
        "changed (with whole slices, where the plan before may stay, until the words of what is tried have); the plan "
        "behind it is verified, its search 0.15 s at most. A paint is from the address to that picture.",
        ("--moves", "2", "--size", "4x2", "--large", "8x4", "--turns", "1"),
    ),
    Benchmark(
        "A what-if session in Chromium",
        "benchmarks.what_if_session",
        "The published mix on five A100, drawn requests of 64 GPUs, an LLM beside batch models whose engines every "
        "plan simulates: moves of sliders drawn at random, and moves of the "
        "number of GPUs to plans that a sweep has proven before, each from the slider's event to the frame that shows "
        "its verified plan; in every frame, how far any part of the page moved.",
        ("--moves", "3"),
    ),
    Benchmark(
        "The dashboard in Chromium",
        "benchmarks.dashboard_speed",
        "The published mix on five A100: a change of page through the menu until everything is drawn; a plan's map "
        "from its address in a browser that knows the dashboard; the first door in an empty workspace. The move is of "
        "inputs, cards, tabs and map, looked at in every frame while the mix is planned and explained anew. Reruns "
        "are moves of a slider, each session opens the plan and is closed.",
        ("--turns", "1", "--reruns", "4", "--sessions", "1", "--rest", "0"),
    ),
    Benchmark(
        "Fewest GPUs for the published serving mixes",
        "benchmarks.planner_mixes",
        "Every model's rate as a hard minimum within its latency limit, proven minimal.",
    ),
    Benchmark(
        "What leaves a GPU",
        "benchmarks.pair_flows",
        "The evaluation's mixes planned without pairs, with soft ones (GPUs that tear a pair apart, counted by bytes) "
        "and with routed ones. Bytes/s are reckoned alike for all: what of the lesser demand of a pair no GPU has room "
        "for on both sides. Bound and gap are of those bytes/s among plans of an equal objective; *ended* is of the "
        "objective and, where pairs rank plans, of them too. S3 with shares is too large for the program with free "
        "layouts: nothing is proven of its bytes/s.",
    ),
    Benchmark(
        "Fewest GPUs within the response time",
        "benchmarks.response_planning",
        "The published mixes and larger ones of the measured library, Poisson arrivals at every rate: the plan for the "
        "response time beside the published rule (a batch may take 0.45 of the objective) and service times alone, "
        "each simulated. The bound is of the problem without waiting; untested on hardware.",
        ("--drawn", "--requests", "20000"),
    ),
    Benchmark(
        "Placements: the exact search against the literal program",
        "benchmarks.placement_literal",
        "First the published tiny case by the most GPUs in a segment. Then the published program (Pyomo, HiGHS) and "
        "the exact search on the same requests, layers × GPUs × most in a segment: processor seconds of all of "
        "`place`, its independent check included, one thread each; the exact search is the median of nine turns. The "
        "literal program is stopped after 60 s of the clock, and what it took until then counts. Random links are "
        "asymmetric and bind. Requests as small as these "
        "are looked at whole (`placement/search/exhaustive.py`) before the search is tried.",
        ("--sizes", "4x4x2", "--seeds", "0", "--turns", "3"),
    ),
    Benchmark(
        "Placements: the exact search at scale",
        "benchmarks.placement_search",
        "First random instances of up to 5 layers, 6 GPUs and 3 GPUs a segment against a look at every pipeline: equal "
        "in value and in the fewest GPUs; *links bind* where the optimum would be higher without a network. Then "
        "layers × GPUs, each searched in a process of its own, with its peak memory; *no network* is the optimum "
        "were all links fast, *arbitrary* means every link drawn on its own, in each direction; values in units of "
        "throughput. Then the search again after one change (a GPU without links, one link halved, a layer more or "
        "less), in one process and from the plan before.",
        (
            *("--random", "20", "--changes", "2"),
            *("--cases", "14 x 30, 3 a segment", "--what-if", "14 x 30, 3 a segment"),
        ),
    ),
    Benchmark(
        "Placements: the chosen numbers of the exact search",
        "benchmarks.placement_constants",
        "Some of the fleets above searched with each number smaller and larger, the others as they are: processor "
        "seconds as a ratio to those with the number as it is, in the same process, of all fleets together and of the "
        "one where the ratio is furthest from 1; how many end proven, and whether proofs contradict each other.",
        ("--cases", "80 x 65 in 12 nodes", "--numbers", "WIDTHS"),
    ),
    Benchmark(
        "Several pipelines at once",
        "benchmarks.placement_replicas",
        "First random instances of up to 4 layers, 5 GPUs and 3 GPUs a segment, at most 2, 3 or any number of "
        "pipelines, against the best of all sets of disjoint pipelines. Then the largest sum of throughputs by how "
        "many pipelines there may be, at most 60 s each; *one* is the best single pipeline. 70B is a decode of "
        "Llama-3.1-70B with a batch of 64 (tokens/s); the others are layers × GPUs, the instances of the exact search "
        "at scale. Last, fleets of noisy nodes of other seeds, any number of pipelines, 60 s each.",
        ("--random", "10", "--cases", "70B, 2 x 8 H100", "--noisy", "0"),
    ),
    Benchmark(
        "Throughput against latency",
        "benchmarks.placement_frontier",
        "Curves of one pipeline, layers × GPUs, at most 60 s each, in a process of its own: points, how many are "
        "proven to have the least latency at their throughput, the widest gap of one that is not, and whether none "
        "is missing between them. The first three are requests, with seconds of a pass; the others the instances of "
        "the exact search at scale, in units of throughput and of 1,000 tokens a pass.",
        ("--cases", "14 x 30, published", "80 x 16, decode_70b"),
    ),
    Benchmark(
        "Decode steps against published measurements",
        "benchmarks.decode_measured",
        "The time per token that placements reckon for decoders whole on 2 to 8 GPUs of one node with every layer cut "
        "among them, against 228 rows measured for Splitwise (ISCA '24; engines of 2023, fp16, batches of 1 to 64, "
        "prompts of 128 to 8,192 tokens; pcap: a power-capped H100). Errors are |reckoned - measured| / measured. The "
        "roofline knows no time of the host and no latency of an all-reduce, so its steps are too short; *one row "
        "known* adds a time a step that makes the smallest row of that GPU, decoder and number of GPUs right, and "
        "judges the others.",
        ("--decoders", "bloom-176b"),
    ),
    Benchmark(
        "LLM serving predicted from sizes",
        "benchmarks.llm_serving_estimates",
        "`estimate-serving` against measured stages of vLLM 0.15.1 on H100 and logs of 0.19.0 on RTX PRO 6000 and RTX "
        "4090: a decoder's sizes and a GPU's peaks give the engine's memory and step times, and its requests are "
        "simulated to the token. Errors are |predicted - measured| / measured, ms. *Peaks alone*: the same engine with "
        "every peak reached and nothing beside; *family left out*: step times and first tokens times the mean error of "
        "the other families (a decoder on a GPU); *first stage known*: later stages of an experiment beside its first. "
        "Constants come from kernels where these show them, and from these rows where not "
        "(`torchsplit_core/llm/constants.py`), so that the errors from sizes are in part those of a fit.",
        ("--rows", "1"),
    ),
    Benchmark(
        "The simulator against simpy and ciw",
        "benchmarks.simulation_speed",
        "The same arrivals (Poisson) and constant service times for each, processor seconds without making the "
        "arrivals, medians of three turns taken alternately in one process. simpy and ciw simulate the first 100,000 "
        "of the million requests, whose mean response must be that of ours. ciw serves no batches.",
        ("--requests", "20000", "--others", "5000", "--turns", "1"),
    ),
    Benchmark(
        "Engines of LLMs against a plain loop over their steps",
        "benchmarks.llm_simulation",
        "The same requests (Poisson arrivals, log-normal lengths) on one engine with 128 sequences and 2,048 tokens a "
        "step, processor seconds, medians of three turns taken alternately in one process. The plain loop does in "
        "every step what the rules say, a sequence at a time; every first and last token must be equal to 1e-9 "
        "relative. Goal: 20 times as fast where blocks suffice; where they do not, steps between preemptions are few.",
        ("--turns", "1", "--largest", "300"),
    ),
    Benchmark(
        "Simulated against MLPerf's Server results on MIG slices",
        "benchmarks.simulation_mlperf",
        "Official results of v1.0 and v1.1 (not verified by MLCommons what is made of them here): p50, p95 and p99 of "
        "Server predicted from SingleStream and Offline of the slice alone (BERT from Offline), at the measured rate; "
        "five numbers are fitted. *Left out*: with those numbers fitted again without the round and GPU that are "
        "judged; the form itself was found with these rows in view. Goals: ResNet-50 and SSD p95 within 15 % for 80 % "
        "of the rows, BERT for 65 %. Rows of one's own: `python -m benchmarks.simulation_mlperf ROWS.csv -o OUT.csv`.",
        ("--requests", "1000"),
    ),
    Benchmark(
        "Opening a model of a million nodes",
        "benchmarks.graph_memory",
        "A chain of residual blocks written as torch writes a .pt2 (about 1 kB a node), read by the limited child "
        "process, stored, read back, prepared for cutting and divided into regions. While it is read, this process "
        "and the child stand beside each other; what follows is this process alone.",
        ("--nodes", "20000"),
    ),
    Benchmark(
        "Reliability",
        "benchmarks.reliability",
        "Tries to lose, damage, overload or break into things. A try holds where everything acknowledged is there, "
        "and what is refused is one message. The goal is 10,000 tries without a failure.",
        ("--share", "0.01", "--only", "kill", "damaged", "hostile"),
    ),
    Benchmark(
        "Fuzzing of what reads",
        "benchmarks.fuzz",
        "Ten minutes of atheris, guided by coverage, on everything that reads a file, a request or an option of "
        "somebody else's, from the seeds of the repository, a process and a twelfth of the time each. A fault is any "
        "exception but the reader's own refusal, a message that steers a terminal, an answer that breaks what is "
        "promised of it (what was read, written and read again is equal; a connection's requests are the same in any "
        "pieces), more than 10 s for an input of 64 KiB, or more than 2 GiB. Edges are of this package alone; what "
        "runs in compiled libraries is not counted.",
        ("--seconds", "12"),
    ),
    Benchmark(
        "Training steps estimated against published measurements",
        "benchmarks.training_estimates",
        "Seconds a step, a family (a framework on a cluster) left out of the fit at a time: nothing of it moved the "
        "constants under which it stands here; its interval is from the errors of the others. Errors are "
        "|estimated − measured| / measured; *largest regret*: measured seconds of the row estimated fastest over those "
        "of the fastest, less one, in groups of equal work. Goals: median of medians 7 %, p90 20 %, 85 to 97 % in the "
        "interval, regret 5 %. The prior values of some constants were known from a prototype that had seen these "
        "sets.",
        ("--rounds", "1"),
    ),
    Benchmark(
        "Rows of trainings in their interval",
        "benchmarks.training_coverage",
        "Share of a family's measured steps in the 90 % interval, averaged over families, left out of the fit in "
        "several ways: neither its rows nor the spreads of the interval have seen what is left out. Goal: 85 to 97 %. "
        "Below: one to three random rows of a family left out are known and calibrate its others (50 draws each).",
        ("--quick",),
    ),
    Benchmark(
        "Training strategies: the search against a look at every choice",
        "benchmarks.strategy_search",
        "Strategies from sizes alone. *Reckoned*: choices whose step was estimated whole, the others were ruled out by "
        "memory or a bound. A look at every choice estimates each, in the same process; it must find the same ten. "
        "Goals: the 70B in 5 s, the unequal fleet with a bound in 30 s.",
        ("--quick",),
    ),
    Benchmark(
        "Training steps of traced models on this processor",
        "benchmarks.training_on_this_cpu",
        "Seconds of a step and its peak memory, predicted over measured less one, of samples trained here in single "
        "precision. *From the graph*: with assumed peaks of a core; *with its profile*: forward passes measured "
        "before; *and one step*: the measured step of the other batch size beside that. *One utilisation for all* is "
        "the baseline, from the other samples.",
        ("--samples", "ocr", "--batches", "2,4", "--steps", "1"),
    ),
    Benchmark(
        "Steps of training runs estimated from this host's rates",
        "benchmarks.training_intervals",
        "Ten samples at two batches, trained by `torchsplit train` in one process on all cores and in two on half of "
        "them each; estimated from the graph and from rates that a probe measures here, each sample judged without "
        "itself (goal: 85 to 97 % of the steps inside the 90 % interval). Beside it the error with assumed peaks.",
        ("--samples", "digits,diamond", "--batches", "4", "--steps", "8"),
    ),
    Benchmark(
        "Best published utilisation",
        "benchmarks.published_mfu",
        "Of the rows of `benchmarks/data/training_steps.csv`, by card and size: an estimate above it says so.",
    ),
    Benchmark(
        "Training runs on this machine",
        "benchmarks.training_runs",
        "A decoder of 4 layers of width 384, 8 sequences of 64 tokens a step, one thread a process, gradients by Gloo. "
        "*Overhead*: a step of `torchsplit train` against a plain loop with DistributedDataParallel under torchrun, "
        "taken in turns (goal: at most 3 %). *Stop*: what an asynchronous checkpoint holds the loop up (goal: at most "
        "20 % of a synchronous one). *Recovery*: from kill -9 of a rank to the next step that is done (goal: at most "
        "20 s). *Balance*: a step of a pipeline of two stages with `--balance`, which times blocks, against one "
        "without, taken in turns. *Memory* is the peak of the fullest process, less that of one with next to no model, "
        "beside what is reckoned from the model's graph.",
        ("--width", "32", "--steps", "8", "--turns", "1"),
    ),
    Benchmark(
        "A loop around `prepare` against a plain loop",
        "benchmarks.training_loop",
        "Forward and backward pass, clipping, AdamW, a schedule and the loss read in each step, on the same samples in "
        "one process with one thread, in turns whose order changes; medians of 15 turns, of each the median step. "
        "Goal: at most 3 %. What the loop around `prepare` does besides takes the same time whatever the model: the "
        "check of each step, its line in a file.",
        ("--turns", "2", "--steps", "10"),
    ),
    Benchmark(
        "Exchanges of gradients chosen by measurement",
        "benchmarks.communication",
        "A decoder of 4 layers of width 320, 4 sequences of 64 tokens a step and process; two processes of "
        "one thread over a slowed loopback that both directions share, and two nodes of two processes over a "
        "slowed cable. Each way has its own copy of the model in the same processes; their steps are taken in "
        "turns, and ratios are of the medians over all turns (in brackets of single turns). DDP's defaults "
        "are torch's DistributedDataParallel without a hook (goal: the choice at least as fast at each of "
        "three bandwidths, 1.3 times at the slowest; over the slowest of them only compression can reach "
        "that, since the exchange alone takes most of the step). A load average above two says that other "
        "work shared the cores: then differences within the brackets are noise. *Loss*: `sample:digits`, two "
        "processes, 330 steps, the exchange fixed; means of 20 steps. PowerSGD compresses after a tenth of the "
        "steps.",
        ("--gbit", "8", "--turns", "1", "--steps", "1", "--width", "64"),
    ),
    Benchmark(
        "What training runs survive",
        "benchmarks.training_kills",
        "A small model, trained by `torchsplit train` in two processes, or by two agents that stand for two nodes; at "
        "different moments of a run something is killed. Recovered: the run ends, has every step once, and every loss "
        "is that of a run that nothing disturbed, to 10⁻⁶ (with dropout, but for the node, after which one process "
        "goes on). The stalled rank is stopped, and ended after 3 s (`--stall-limit 3`).",
        ("--turns", "1", "--kills", "rank"),
    ),
    Benchmark(
        "From a training run to answered requests",
        "benchmarks.train_to_serve",
        "`sample:digits`, trained in two processes on this machine, then profiled on a core, planned, served and "
        "asked, each by its command (docs/guides/training-runs.md, Use the model). The run's accuracy beside "
        "that of the served model on the same held-out images, asked over HTTP; predicted response times (90 % "
        "interval) beside measured ones.",
        ("--steps", "4", "--seconds", "2"),
    ),
    Benchmark(
        "What a short command costs beside Python",
        "benchmarks.start_time",
        "Processor time of whole processes, in the program and in the kernel, over that of `python -c pass` in the "
        "same turns: medians, the commands one after the other. Goals: a small plan 30, a request of two files and "
        "the files that cut a plan's GPUs 25, every help 5. What each command may load is held by "
        "`tests/cli/test_loaded.py`. The process that forks jobs keeps the planner and Pyomo loaded; memory is the "
        "resident set. Beside the version before (commit 502e6eaa in a work tree beside this one, three turns): "
        "`python -m benchmarks.start_time --turns 3 --against ../before`.",
        ("--turns", "1"),
    ),
    Benchmark(
        "The test suite",
        "benchmarks.suite_time",
        "Wall time of what `make test` runs, on two idle cores. Before the tree was rebuilt (random instances one a "
        "case, each file sent to one worker) the same command took 816 s for 7,546 cases on the same machine.",
        ("--part", "tests/values"),
    ),
    Benchmark(
        "Changes of the source that the tests notice",
        "benchmarks.mutations",
        "Places of the rooms that decide, drawn with a seed, are broken one at a time (`<` to `<=`, `+` to `-`, `n` to "
        "`n + 1`, ...) in a copy of the project, and each room's own tests run on it up to the first that fails; one "
        "that fails counts if it passes without the change. Equivalent changes cannot alter a result: "
        "`benchmarks/data/equivalent_mutants.csv` has the reasons. Goal: 90 % of the others caught. Of this draw "
        "the tests caught 34 of 55 (62 %) before they were written for its survivors: another seed draws other places.",
        ("--count", "1", "--rooms", "simulation"),
    ),
    Benchmark(
        "Running the parts of a cut model",
        "benchmarks.stage_execution",
        "Parts from the exported files against the model, to the bit.",
        ("--samples", "diamond"),
    ),
    Benchmark(
        "What the allocator of Kubernetes strands",
        "benchmarks.cluster_allocation",
        "Full mixes of slices under dynamic MIG, each a maximal layout (78 of an A100, 5 of an A30) for each GPU, by a "
        "model of the scheduler's allocator (`torchsplit_core/deployment/allocator.py`; not tried on a cluster). All "
        "mixes fit. A claim for each GPU is what `deploy --format kubernetes` writes in `dra/`; the command fails "
        "where one strands.",
        ("--mixes", "30"),
    ),
    Benchmark(
        "Served plans against what was predicted of them",
        "benchmarks.serving_accuracy",
        "Models of four samples' architectures (`benchmarks/served_models.py`) served on slices of this host's cores, "
        "15 s of Poisson arrivals at each load; the front and the load generator have a core of their own. Goals: "
        "throughput within 10 % of the plan's and p95 within 15 % of the simulation's (of the same arrivals) in 90 % "
        "of the cases. The simulation draws batch times as the points vary that were measured before; parts of a cut "
        "model are estimated from the whole one's points, and take one time a batch. The replay has the times that the "
        "batches of this run took: where it is within 15 % and the simulation is not, the queues are as modelled and "
        "the cores changed their speed, which the first table shows (a fixed loop, 5 s). What parts is what `measure` "
        "says of it.",
        ("--models", "bert", "--loads", "0.4", "--seconds", "2"),
    ),
    Benchmark(
        "An LLM engine on this processor against its simulation",
        "benchmarks.llm_serving",
        "A decoder of 4 million random parameters, served by transformers' continuous batching (at most 8 sequences "
        "and 256 tokens a step, one thread) and loaded as `measure --endpoint` loads any: log-normal lengths, "
        "Poisson arrivals at shares of the rate that it completes, three rounds of 5 s a case. Every second case is "
        "predicted from the two beside it, of other lengths or loads: the line of step times is fitted to the "
        "engine's own log of them, and *way* is from the end of a step to the client. *Own steps* is the same with "
        "the line of the case's own log: what is left is the scheduler and what no line says of steps; what it "
        "removes is that the cores changed their speed. Run it on an idle machine: the engine and the client share "
        "its cores with whatever else runs.",
        ("--lengths", "short", "--loads", "0.3", "0.6", "--seconds", "1", "--rounds", "1"),
    ),
    Benchmark(
        "Clients that mean harm against a front",
        "benchmarks.front_attacks",
        "An empty model served by the command line with time limits of 2 s, 1,000 connections and 64 MiB of bodies at "
        "once. A try fails where the server ends, answers in anything but HTTP and JSON, or holds a connection beyond "
        "its limits; a family fails where the front and its readers grow by more than 400 MiB. *Others* is another "
        "process that asks for health and inference all the while; a 503 at once counts as an answer. *Nobody* is "
        "the same without an attack. Attackers, server and others share this machine's cores, so what others wait is "
        "to be read beside a control: clients that ask as much and mean no harm, or a process that computes.",
        ("--share", "0.02"),
    ),
    Benchmark(
        "What the front of a served plan carries",
        "benchmarks.front_capacity",
        "The highest open-loop rate (Poisson) at which clients' p95 stays within 50 ms, of a model that gives back its "
        "input: the front alone on a core, worker and load generator on another; by bytes of an input (FP32 tensors "
        "as bytes, the output as many) and the largest batch. A search each, to 5 %. Beside it what "
        "the costs say that are measured at first use; the last column is the second way to that figure: the highest "
        "rate over the share of its core that the front had at it. Where that share is far below one, worker, "
        "generator or other work on the machine were the limit. Against the version before (commit 21001cb1 in a work "
        "tree beside this one, both in turn, medians of two: `python -m benchmarks.front_capacity --against ../before "
        "--turns 2 --floats 16`): 13,083 against 4,242 requests/s in batches of up to 16, 3.08 times as many; one by "
        "one, where each waits for the worker's answer to the one before, 3,200 against 2,167, 1.48 times.",
        ("--turns", "1", "--floats", "16", "--batches", "16", "--seconds", "1"),
    ),
    Benchmark(
        "Measured p95 in the interval of its simulation",
        "benchmarks.p95_coverage",
        "Twelve models (`benchmarks/served_models.py`), whole on a core, each profiled, planned, simulated and served "
        "at three loads, 10 s of Poisson arrivals each. *Pace* is how the profile found this host to change its speed: "
        "coefficient of variation and length of slow periods, and of the speed of a run in another minute. *Low* and "
        "*high* are what 90 % of the simulation's runs of these arrivals lie between. *Batch ms / profiled* is how "
        "much slower the run's batches were than the profile's of the same sizes. *Others*: the share of the cores "
        "that processes of somebody else took in a look before, between and after. Goal: 85 to 97 % inside.",
        ("--models", "ocr", "--loads", "0.4", "--seconds", "2"),
    ),
    Benchmark(
        "What served workers hold against what plans count",
        "benchmarks.worker_memory",
        "Models served by 1, 2 and 4 workers of one core each; held is what the kernel says of all processes behind "
        "the front. PSS has the pages of libraries too, which the workers share; one more worker adds what the last "
        "column but one says.",
        ("--models", "sample:ocr", "--workers", "1", "2"),
    ),
)
