#!/bin/sh
# In the crontab of every host:  0 * * * * REDLOCK_NODES=redis://locks hourly.sh ./report
# One host runs the command, the others do nothing.
redlock run --nonblock --quiet --min-hold 50s --key cron:hourly -- "$@" || {
    code=$?
    [ "$code" -ne 75 ] || exit 0 # another host runs it, or has run it
    exit "$code"                 # 69: no server; 70: the lock was lost; or that of the command
}
