"""Any OpenAI-compatible endpoint under open-loop load, measured token by token.

address        URL, key and path of an endpoint; the head and the body of a request
event_stream   server-sent events; the answer of one request as its tokens come
client         requests on connections that are kept; how each ended
prompts        seeded prompts of a number of tokens
probe          what an endpoint says before the load: its faults in one line, its tokens a word, its settings
open_loop      stages of rates, sent when they are due
measurement    from the probe to the rows
rows           the answers of a stage as one row of a table of measured serving
"""
