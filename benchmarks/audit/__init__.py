"""`pagedattn audit`: a trace of requests replayed through KV allocators at equal memory.

trace.py       a trace and its requests
readers.py     from CSV and JSONL files
generator.py   a made-up one
content.py     which blocks hold equal content
server.py      memory, limits and speed of the simulated server
contender.py   allocators to compare
simulate.py    the replay: admit, grow, preempt
clocked.py     host time of an allocator's calls
timeline.py    what the memory holds, over time
counts.py      what happened to the requests
fixed.py       reservation and paging at final length, by arithmetic alone
prefix.py      prefix hits by cache size and policy, beside the clairvoyant optimum
run.py         all of it                         results.py   what is reported, and its JSON
tables.py, report.py, plot.py   for people       cli.py, options.py   the command
"""
