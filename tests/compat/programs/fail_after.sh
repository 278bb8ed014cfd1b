# Runs a program, and then fails in the first so many incarnations of the job, however well it went:
# fail_after.sh TIMES PROGRAM [ARGUMENTS]. The worker of rank 0 kills itself; the others wait to be ended.
times=$1
shift
"$@" || exit
[ "$ELRUN_RESTART_COUNT" -lt "$times" ] || exit 0
[ "$RANK" = 0 ] && kill -KILL $$
exec sleep 3600
