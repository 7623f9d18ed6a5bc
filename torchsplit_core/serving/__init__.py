"""Plans that run: served on this host, and measured under load.

    settings    what may be chosen          roster      who serves what, from plan and request
    places      slices on this host         parts       the stages of cut models, written
    process     a worker as the front sees it, on a `link`; `worker` its own side, `messages` what crosses, `runnable`
                what it runs
    waiting     queues and turns            seats       places of workers, stages of models
    engine      requests to batches to workers and back; `crew` keeps these alive
    wire/       HTTP with its limits, who may ask, and the protocol for all who speak it: requests, answers, bodies
    meters      what is counted             front/      paths, start and end
    load/       open-loop load, and what was measured beside what was said
    routing/    a cut model's parts on several servers, behind one address; ray_app: the same as a Ray application

Nothing here loads torch but `worker` and `runnable`, in the workers' processes.
"""
