#!/bin/sh
# store.sh ELRUN CLIENT LOG: the client against a store of its own, which ends with this shell whatever comes of it.
"$1" store --host 127.0.0.1 --port 0 2> "$3" &
trap 'kill $!' EXIT
for attempt in $(seq 400); do
  port=$(sed -n 's/.*127\.0\.0\.1:\([0-9]*\).*/\1/p' "$3" | head -n 1)
  [ -n "$port" ] && break
  sleep 0.05
done
"$2" "127.0.0.1:$port"
