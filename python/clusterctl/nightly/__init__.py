"""The nightly validation: its schedule, the run of one night, drift, reports and notifications.

Pure modules decide: :mod:`schedule` (when a night is due or missed, and the text of units and crontab lines) and
:mod:`policy` (verdict, change, retention). :mod:`storage` keeps the files, :mod:`scheduler` runs systemctl and crontab,
:mod:`notify` calls the hook. :mod:`install` and :mod:`run` are the commands.
"""
