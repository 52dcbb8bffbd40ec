"""`pagedattn audit`: a trace of requests replayed through KV allocators at equal memory.

trace.py       a trace and its requests           readers.py   from CSV and JSONL files
generator.py   a made-up trace                    content.py   which blocks hold equal content
contender.py   allocators to compare              clocked.py   the time that they take
simulate.py    the server: admits, grows, preempts
timeline.py    what the memory holds, over time
fixed.py       reservation and paging at final length, by arithmetic alone
prefix.py      prefix hits by cache size and policy, beside the clairvoyant optimum
results.py     what is reported, and its JSON     report.py, plot.py   for people
"""
