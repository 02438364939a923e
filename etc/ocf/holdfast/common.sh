# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# What the resource agents of this folder share. They read it; it is no agent itself and therefore
# not executable: Pacemaker takes every executable of this folder for one.
#
# An agent defines usage, meta_data, validate, start, stop and monitor, then calls `act "$@"`.

: "${OCF_ROOT:=/usr/lib/ocf}"
: "${OCF_FUNCTIONS_DIR:=$OCF_ROOT/lib/heartbeat}"
: "${HA_RSCTMP:=/run/resource-agents}"

act() { # ACTION: do what Pacemaker asks; this ends the program
    if [ $# -ne 1 ]; then
        usage >&2
        exit 2
    fi
    case $1 in
    meta-data)
        meta_data
        exit 0
        ;;
    usage | help)
        usage
        exit 0
        ;;
    start | stop | monitor | status | validate-all) ;;
    *)
        usage >&2
        exit 3
        ;;
    esac
    if [ ! -r "$OCF_FUNCTIONS_DIR/ocf-shellfuncs" ]; then
        echo "ocf-exit-reason:$OCF_FUNCTIONS_DIR/ocf-shellfuncs is not here: install the package" \
            "resource-agents, or set OCF_ROOT" >&2
        exit 5
    fi
    # shellcheck source=/dev/null
    . "$OCF_FUNCTIONS_DIR/ocf-shellfuncs"
    __OCF_ACTION=$1
    case $1 in
    start) validate && start ;;
    stop) stop ;;
    monitor | status) monitor ;;
    validate-all) validate ;;
    esac
    exit $?
}

refuse() { # CODE SENTENCE: why this cannot be, for crm_mon
    ocf_exit_reason "$2"
    return "$1"
}

whole() { # TEXT: is it a whole number that the shell can count with?
    case $1 in
    '' | *[!0-9]* | ??????????*) return 1 ;;
    esac
}

need_numbers() { # NAME...: parameters that must be whole numbers
    for name in "$@"; do
        eval "value=\$OCF_RESKEY_$name"
        whole "$value" ||
            refuse "$OCF_ERR_CONFIGURED" "$name is \"$value\": set a whole number" || return
    done
}

need_program() { # NAME: a parameter that names a program
    eval "value=\$OCF_RESKEY_$1"
    have_binary "$value" || refuse "$OCF_ERR_INSTALLED" \
        "$value is not here: install Holdfast on this host, or set $1 to where it is"
}

need_config() {
    # without a file for any host nothing can work anywhere; that it is not on this host must not
    # stop the others, which ERR_CONFIGURED would
    [ -n "$OCF_RESKEY_config" ] ||
        refuse "$OCF_ERR_CONFIGURED" "no config is set: name the file with [agent]" || return
    [ -f "$OCF_RESKEY_config" ] || refuse "$OCF_ERR_ARGS" \
        "$OCF_RESKEY_config is not on this host: write it there, or set config" || return
    [ -r "$OCF_RESKEY_config" ] ||
        refuse "$OCF_ERR_PERM" "$OCF_RESKEY_config cannot be read by $(id -un)"
}

need_folder_of() { # FILE: a folder that can be written to; start makes it
    case $1 in
    /*) ;;
    *) refuse "$OCF_ERR_CONFIGURED" "\"$1\": write the whole path, from / on" || return ;;
    esac
    folder=${1%/*}/
    [ "$__OCF_ACTION" != start ] || mkdir -p -- "$folder" 2>/dev/null
    if [ -e "$folder" ] || [ "$__OCF_ACTION" = start ]; then
        { [ -d "$folder" ] && [ -w "$folder" ]; } ||
            refuse "$OCF_ERR_PERM" "$(id -un) cannot write $1: give it the folder, or set another"
    fi
}

now() { # seconds since the machine started: no clock that can be set
    read -r up _ </proc/uptime
    echo "${up%.*}"
}

time_left() { # KEPT: seconds until Pacemaker's patience with this action ends, minus those KEPT
    whole "$OCF_RESKEY_CRM_meta_timeout" || OCF_RESKEY_CRM_meta_timeout=60000
    left=$((OCF_RESKEY_CRM_meta_timeout / 1000 - $1))
    [ "$left" -ge 1 ] || left=1
    echo "$left"
}

ask() { # SECONDS COMMAND...: run it; its exit code, and in $said what it says, on one line
    whole "$1" && limit=$1 || limit=10
    shift
    said=$(timeout -k 2 "$limit" "$@" 2>&1 9>&- </dev/null)
    code=$?
    case $code in
    124 | 137) said="no answer within $limit s" ;;
    esac
    said=$(printf '%s' "$said" | tr '\n\t' '; ' | cut -c 1-400)
    return $code
}
