"""The least seconds of a pass of the pipelines that reach a throughput, and what they leave of the best one."""
