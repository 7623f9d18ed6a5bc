"""`python -m torchsplit_core.jobs ROOT WORKSPACE JOB` runs one job."""

from torchsplit_core.jobs.runner import main

if __name__ == "__main__":
    main()
