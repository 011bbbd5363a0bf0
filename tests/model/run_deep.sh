#!/bin/bash
# The model checks with their larger searches: minutes, and some gigabytes of memory. What each one
# proves is said in the test of the same name. `make model` runs this.
set -u
here=$(cd "$(dirname "$0")" && pwd)
status=0
for model in packet board; do
    echo "== $model"
    "$here/test_${model}_model.sh" --deep || status=1
done
exit $status
