# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_hopline_global_optspecs
    string join \n h/help V/version
end

function __fish_hopline_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_hopline_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_hopline_using_subcommand
    set -l cmd (__fish_hopline_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c hopline -n "__fish_hopline_needs_command" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_needs_command" -s V -l version -d 'Print version'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "demo" -d 'Run relay, agent and sidecar in one process, make gRPC calls through them, and compare each promise with its measurement'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "relay" -d 'Run a relay, the only process that listens on a network'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "token" -d 'Create, list and revoke join tokens'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "machine" -d 'List and remove machines that have joined'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "join" -d 'Redeem a join token for this machine\'s certificate'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "up" -d 'Run an edge: publish this machine\'s services and open local sockets for remote ones'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "dial" -d 'Connect to one service without a config file'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "status" -d 'Show the status of a running edge or relay; exits with 0 only if it is healthy'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "check" -d 'Check an edge\'s config file and report every fault with its line and column'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "completions" -d 'Print a shell completion script'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hopline -n "__fish_hopline_using_subcommand demo" -l break -d 'Inject a real fault that this row must catch; `list` prints the row names' -r
complete -c hopline -n "__fish_hopline_using_subcommand demo" -l stay -d 'Keep everything running afterwards and print how to try it by hand'
complete -c hopline -n "__fish_hopline_using_subcommand demo" -l json -d 'Print JSON instead of a table'
complete -c hopline -n "__fish_hopline_using_subcommand demo" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand relay" -s c -l config -d 'Config file; flags override it' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand relay" -l listen -d 'Address to listen on for edges; `[::]` is every IPv6 and IPv4 address [default: [::]:7443]' -r
complete -c hopline -n "__fish_hopline_using_subcommand relay" -l state -d 'State folder: certificate authority, tokens, machines; created if missing [default: a per-user folder]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand relay" -l admin -d 'Status address, loopback HOST:PORT or unix:PATH [default: none]' -r
complete -c hopline -n "__fish_hopline_using_subcommand relay" -l admin-host -d 'Host name that requests to the status address may use, besides IP addresses and localhost; repeatable' -r
complete -c hopline -n "__fish_hopline_using_subcommand relay" -l drain -d 'Grace period for open sessions after SIGTERM [default: 10s]' -r
complete -c hopline -n "__fish_hopline_using_subcommand relay" -l name -d 'The relay\'s name, as edges show it [default: this machine\'s host name]' -r
complete -c hopline -n "__fish_hopline_using_subcommand relay" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "create" -d 'Create a join token and print it on stdout, and nothing else'
complete -c hopline -n "__fish_hopline_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "list" -d 'List tokens'
complete -c hopline -n "__fish_hopline_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "revoke" -d 'Revoke a token; machines that already joined keep their access'
complete -c hopline -n "__fish_hopline_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -l state -d 'The relay\'s state folder [default: as for relay]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -l relay -d 'Address at which machines reach the relay' -r
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -l publish -d 'Service names that the machine may publish; repeatable' -r
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -l dial -d 'Service names that the machine may dial; repeatable' -r
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -l ttl -d 'Lifetime of the token' -r
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -l uses -d 'Number of machines that may join with it' -r
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from list" -l state -d 'The relay\'s state folder [default: as for relay]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from revoke" -l state -d 'The relay\'s state folder [default: as for relay]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from revoke" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "create" -d 'Create a join token and print it on stdout, and nothing else'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "list" -d 'List tokens'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "revoke" -d 'Revoke a token; machines that already joined keep their access'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and not __fish_seen_subcommand_from list remove help" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and not __fish_seen_subcommand_from list remove help" -f -a "list" -d 'List machines that have joined and what they may do'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and not __fish_seen_subcommand_from list remove help" -f -a "remove" -d 'Remove a machine: a running relay closes its links within a second, and it can\'t link again'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and not __fish_seen_subcommand_from list remove help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from list" -l state -d 'The relay\'s state folder [default: as for relay]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from remove" -l state -d 'The relay\'s state folder [default: as for relay]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from help" -f -a "list" -d 'List machines that have joined and what they may do'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from help" -f -a "remove" -d 'Remove a machine: a running relay closes its links within a second, and it can\'t link again'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hopline -n "__fish_hopline_using_subcommand join" -l state -d 'Folder for this machine\'s key and certificate; created if missing [default: a per-user folder]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand join" -l name -d 'This machine\'s name [default: its host name]' -r
complete -c hopline -n "__fish_hopline_using_subcommand join" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand up" -s c -l config -d 'Config file' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand up" -l state -d 'Folder with this machine\'s key and certificate, as created by `hopline join` [default: as for join]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand up" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand dial" -l listen -d 'Local address for applications: unix:PATH, or HOST:PORT on loopback; `-` uses stdin and stdout as the connection' -r
complete -c hopline -n "__fish_hopline_using_subcommand dial" -l open-timeout -d 'Timeout for opening a session' -r
complete -c hopline -n "__fish_hopline_using_subcommand dial" -l state -d 'Folder with this machine\'s key and certificate, as created by `hopline join` [default: as for join]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand dial" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand status" -l json -d 'Print the raw JSON'
complete -c hopline -n "__fish_hopline_using_subcommand status" -l watch -d 'Refresh every second until Ctrl-C; the exit code reflects the last refresh'
complete -c hopline -n "__fish_hopline_using_subcommand status" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand check" -s c -l config -d 'Config file' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand check" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand completions" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "demo" -d 'Run relay, agent and sidecar in one process, make gRPC calls through them, and compare each promise with its measurement'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "relay" -d 'Run a relay, the only process that listens on a network'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "token" -d 'Create, list and revoke join tokens'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "machine" -d 'List and remove machines that have joined'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "join" -d 'Redeem a join token for this machine\'s certificate'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "up" -d 'Run an edge: publish this machine\'s services and open local sockets for remote ones'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "dial" -d 'Connect to one service without a config file'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "status" -d 'Show the status of a running edge or relay; exits with 0 only if it is healthy'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "check" -d 'Check an edge\'s config file and report every fault with its line and column'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "completions" -d 'Print a shell completion script'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hopline -n "__fish_hopline_using_subcommand help; and __fish_seen_subcommand_from token" -f -a "create" -d 'Create a join token and print it on stdout, and nothing else'
complete -c hopline -n "__fish_hopline_using_subcommand help; and __fish_seen_subcommand_from token" -f -a "list" -d 'List tokens'
complete -c hopline -n "__fish_hopline_using_subcommand help; and __fish_seen_subcommand_from token" -f -a "revoke" -d 'Revoke a token; machines that already joined keep their access'
complete -c hopline -n "__fish_hopline_using_subcommand help; and __fish_seen_subcommand_from machine" -f -a "list" -d 'List machines that have joined and what they may do'
complete -c hopline -n "__fish_hopline_using_subcommand help; and __fish_seen_subcommand_from machine" -f -a "remove" -d 'Remove a machine: a running relay closes its links within a second, and it can\'t link again'
