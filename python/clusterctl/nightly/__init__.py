"""The verb nightly: the proof renewed every night, what has drifted, and a word to somebody when the verdict changes.

What decides is pure and stands apart: :mod:`schedule` (when a night is due, and whether it was missed), :mod:`units`
and :mod:`crontab` (what is written where), :mod:`decide` (verdict, change, retention). The hands are :mod:`shelf` (the
files), :mod:`timers` (systemctl and crontab) and :mod:`hook`; :mod:`enabling`, :mod:`night` and :mod:`outlook` tell
the stories of the commands.
"""
