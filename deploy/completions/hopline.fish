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
complete -c hopline -n "__fish_hopline_needs_command" -f -a "demo" -d 'Run a whole path in this process, make calls through it, and print what was promised and measured'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "relay" -d 'Run a relay: the one process that listens on a network'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "token" -d 'Make, list and revoke join tokens'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "machine" -d 'List the machines that have joined, and remove them'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "join" -d 'Turn a join token into this machine\'s certificate'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "up" -d 'Run an edge: publish this machine\'s services, open local sockets for remote ones'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "dial" -d 'Reach one service, without a config file'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "status" -d 'Show what a running edge or relay knows of itself; exit 0 only if it is healthy'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "check" -d 'Check an edge\'s config file: all its faults at once, each with line and column'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "completions" -d 'Print completions for a shell on stdout'
complete -c hopline -n "__fish_hopline_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hopline -n "__fish_hopline_using_subcommand demo" -l break -d 'Put one real fault under this row, to see it turn red; `list` names the rows' -r
complete -c hopline -n "__fish_hopline_using_subcommand demo" -l stay -d 'Keep everything running afterwards, and print how to try it by hand'
complete -c hopline -n "__fish_hopline_using_subcommand demo" -l json -d 'Print JSON instead of a table'
complete -c hopline -n "__fish_hopline_using_subcommand demo" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand relay" -s c -l config -d 'Config file; what the flags say goes before what it says' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand relay" -l listen -d 'Where edges connect; `[::]` is every address of IPv6 and IPv4 [default: [::]:7443]' -r
complete -c hopline -n "__fish_hopline_using_subcommand relay" -l state -d 'Folder of the authority, the tokens and the machines; made if it is missing [default: a folder of this user]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand relay" -l admin -d 'Status address, loopback HOST:PORT or unix:PATH [default: none]' -r
complete -c hopline -n "__fish_hopline_using_subcommand relay" -l admin-host -d 'A host name under which the status may be asked for, beside IP addresses and localhost; may be repeated' -r
complete -c hopline -n "__fish_hopline_using_subcommand relay" -l drain -d 'How long open sessions may run on after SIGTERM [default: 10s]' -r
complete -c hopline -n "__fish_hopline_using_subcommand relay" -l name -d 'The relay\'s name, shown to its edges [default: this machine\'s host name]' -r
complete -c hopline -n "__fish_hopline_using_subcommand relay" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "create" -d 'Print one new join token on stdout, nothing else'
complete -c hopline -n "__fish_hopline_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "list" -d 'List the tokens'
complete -c hopline -n "__fish_hopline_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "revoke" -d 'Make a token useless. Machines that joined with it stay'
complete -c hopline -n "__fish_hopline_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -l state -d 'The relay\'s state folder [default: the folder that `hopline relay` takes by default]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -l relay -d 'Where the machine will reach the relay' -r
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -l publish -d 'Names that the machine may publish; may be repeated' -r
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -l dial -d 'Names that the machine may dial; may be repeated' -r
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -l ttl -d 'How long the token can be used' -r
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -l uses -d 'How many machines may join with it' -r
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from list" -l state -d 'The relay\'s state folder [default: the folder that `hopline relay` takes by default]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from revoke" -l state -d 'The relay\'s state folder [default: the folder that `hopline relay` takes by default]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from revoke" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "create" -d 'Print one new join token on stdout, nothing else'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the tokens'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "revoke" -d 'Make a token useless. Machines that joined with it stay'
complete -c hopline -n "__fish_hopline_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and not __fish_seen_subcommand_from list remove help" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and not __fish_seen_subcommand_from list remove help" -f -a "list" -d 'List the machines that have joined, and what they may do'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and not __fish_seen_subcommand_from list remove help" -f -a "remove" -d 'Forget a machine: a running relay ends its links within a second, and it can\'t link again'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and not __fish_seen_subcommand_from list remove help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from list" -l state -d 'The relay\'s state folder [default: the folder that `hopline relay` takes by default]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from remove" -l state -d 'The relay\'s state folder [default: the folder that `hopline relay` takes by default]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the machines that have joined, and what they may do'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from help" -f -a "remove" -d 'Forget a machine: a running relay ends its links within a second, and it can\'t link again'
complete -c hopline -n "__fish_hopline_using_subcommand machine; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hopline -n "__fish_hopline_using_subcommand join" -l state -d 'Folder for this machine\'s key and certificate; made if it is missing [default: a folder of this user]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand join" -l name -d 'This machine\'s name [default: its host name]' -r
complete -c hopline -n "__fish_hopline_using_subcommand join" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand up" -s c -l config -d 'Config file' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand up" -l state -d 'Folder of this machine\'s key and certificate, as `hopline join` made it [default: as for join]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand up" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand dial" -l listen -d 'Where applications connect: unix:PATH, HOST:PORT on loopback, or `-`: nowhere, stdin and stdout are the connection' -r
complete -c hopline -n "__fish_hopline_using_subcommand dial" -l open-timeout -d 'How long an open may take' -r
complete -c hopline -n "__fish_hopline_using_subcommand dial" -l state -d 'Folder of this machine\'s key and certificate, as `hopline join` made it [default: as for join]' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand dial" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand status" -l json -d 'Print the JSON as it is'
complete -c hopline -n "__fish_hopline_using_subcommand status" -l watch -d 'Show it anew every second, until Ctrl-C; the exit code is then that of what was shown last'
complete -c hopline -n "__fish_hopline_using_subcommand status" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand check" -s c -l config -d 'Config file' -r -F
complete -c hopline -n "__fish_hopline_using_subcommand check" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand completions" -s h -l help -d 'Print help'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "demo" -d 'Run a whole path in this process, make calls through it, and print what was promised and measured'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "relay" -d 'Run a relay: the one process that listens on a network'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "token" -d 'Make, list and revoke join tokens'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "machine" -d 'List the machines that have joined, and remove them'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "join" -d 'Turn a join token into this machine\'s certificate'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "up" -d 'Run an edge: publish this machine\'s services, open local sockets for remote ones'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "dial" -d 'Reach one service, without a config file'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "status" -d 'Show what a running edge or relay knows of itself; exit 0 only if it is healthy'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "check" -d 'Check an edge\'s config file: all its faults at once, each with line and column'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "completions" -d 'Print completions for a shell on stdout'
complete -c hopline -n "__fish_hopline_using_subcommand help; and not __fish_seen_subcommand_from demo relay token machine join up dial status check completions help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hopline -n "__fish_hopline_using_subcommand help; and __fish_seen_subcommand_from token" -f -a "create" -d 'Print one new join token on stdout, nothing else'
complete -c hopline -n "__fish_hopline_using_subcommand help; and __fish_seen_subcommand_from token" -f -a "list" -d 'List the tokens'
complete -c hopline -n "__fish_hopline_using_subcommand help; and __fish_seen_subcommand_from token" -f -a "revoke" -d 'Make a token useless. Machines that joined with it stay'
complete -c hopline -n "__fish_hopline_using_subcommand help; and __fish_seen_subcommand_from machine" -f -a "list" -d 'List the machines that have joined, and what they may do'
complete -c hopline -n "__fish_hopline_using_subcommand help; and __fish_seen_subcommand_from machine" -f -a "remove" -d 'Forget a machine: a running relay ends its links within a second, and it can\'t link again'
