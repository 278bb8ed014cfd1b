# Says which world it is in, and ends when the file is there: world.sh FILE. With a second file it kills itself once, in
# the first generation, as soon as that is there.
echo "ready rank=$RANK world=$WORLD_SIZE group=$GROUP_RANK master=$MASTER_ADDR port=$MASTER_PORT address=$ELRUN_NODE_ADDRESS node=$ELRUN_NODE host=$(uname -n) generation=$ELRUN_GENERATION restarts=$ELRUN_RESTART_COUNT time=$(date +%s) pid=$$"
until [ -e "$1" ]; do
  [ -n "$2" ] && [ "$ELRUN_GENERATION" = 1 ] && [ -e "$2" ] && kill -KILL $$
  sleep 0.1
done
