#!/usr/bin/env bash
# planted_absent.sh SIMULATOR PRODUCT...: the simulator knows the planted bugs by name, and no product binary has any of them.
set -euo pipefail
simulator=$1
shift
count=0
while read -r name; do
  grep -aqF "$name" "$simulator" || { echo "the simulator does not contain $name: this test would see nothing"; exit 1; }
  for product in "$@"; do
    ! grep -aqF "$name" "$product" || { echo "$product contains the planted bug $name"; exit 1; }
  done
  count=$((count + 1))
done < <("$simulator" --planted list)
((count >= 20)) || { echo "only $count planted bugs"; exit 1; }
for product in "$@"; do
  ! grep -aqF "elrun3sim" "$product" || { echo "$product contains the simulator's switch"; exit 1; }
done
grep -aqF "elrun3sim" "$simulator" || { echo "the simulator's names do not look as expected: this test would see nothing"; exit 1; }
echo "none of $count planted bugs in $*"
