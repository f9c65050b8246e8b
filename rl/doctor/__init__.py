"""``rl-doctor``: can a configuration run on this machine, and if not, what is missing?
 Each module holds one kind of check: functions that return a `rl.doctor.check.Check` or several and never
raise what they look for. `rl.doctor.examine` puts them together.
"""
