#!/bin/sh
# Prints the Secrets of a deployment, one for each process that reads tokens, with those that it needs and no others:
#   deploy/kubernetes/secrets.sh FOLDER | kubectl apply -f -
# FOLDER holds one file per token, as `whippletree tokens FOLDER` makes them. Nothing is written anywhere.
set -eu
folder=${1:?usage: secrets.sh FOLDER}
namespace=${NAMESPACE:-whippletree}

give() {
  secret=$1
  shift
  for token; do
    shift
    set -- "$@" "--from-file=$token=$folder/$token"
  done
  echo "---"
  kubectl create secret generic "$secret" --namespace "$namespace" --dry-run=client --output yaml "$@"
}

give gateway-tokens harness model-executor mcp-pool sandbox-manager
give model-executor-tokens model-executor
give mcp-pool-tokens mcp-pool
give sandbox-manager-tokens sandbox-manager
give core-tokens core harness
give tool-gate-tokens core
