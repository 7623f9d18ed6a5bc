"""A decoder served on this host by continuous batching, behind an OpenAI-compatible endpoint.

settings       what may be chosen of an engine
decoder        the model of a config.json, random or with its weights, and its text as tokens; loads torch
batching       transformers' continuous batching: requests in, tokens out as they come; loads torch
step_log       what each step processed and how long it took
step_fit       the line of step times that a log makes
app            the endpoint: completions, chats, their streams
__main__       the engine's process, which ends when its standard input does
process        that process started, waited for and stopped
"""
