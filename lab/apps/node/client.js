// The client: calls as stdin asks for them, on one channel.

import { createInterface } from 'node:readline';

import grpc from '@grpc/grpc-js';

import { emit } from './events.js';
import { Ledger, Source, argumentsOf, pour } from './stream.js';

const raw = (bytes) => bytes;

/** Obeys stdin until it ends or says `quit`. */
export function runClient(target, keepalive, window) {
  // A proxy of the environment is no part of what is measured.
  const options = { 'grpc.enable_http_proxy': 0 };
  if (keepalive.intervalMs > 0) {
    options['grpc.keepalive_time_ms'] = keepalive.intervalMs;
    options['grpc.keepalive_timeout_ms'] = keepalive.timeoutMs;
    options['grpc.keepalive_permit_without_calls'] = keepalive.idle ? 1 : 0;
  }
  if (window > 0) {
    options['grpc-node.flow_control_window'] = window;
  }
  const client = new Client(new grpc.Client(target, grpc.credentials.createInsecure(), options));
  emit('ready', {});
  const lines = createInterface({ input: process.stdin });
  lines.on('line', (line) => client.obey(JSON.parse(line)));
  lines.on('close', () => client.quit());
}

class Client {
  #channel;
  #open = new Map();

  constructor(channel) {
    this.#channel = channel;
  }

  obey(command) {
    if (command.op === 'call') {
      this.#start(command);
    } else if (command.op === 'cancel') {
      this.#cancel(command.call);
    } else if (command.op === 'state') {
      const state = this.#channel.getChannel().getConnectivityState(false);
      emit('state', { state: grpc.connectivityState[state] });
    } else if (command.op === 'quit') {
      this.quit();
    } else {
      throw new Error(`no such op: ${JSON.stringify(command)}`);
    }
  }

  quit() {
    this.#channel.close();
    // After the sockets have had their turn to close.
    setImmediate(() => process.exit(0));
  }

  #start(command) {
    emit('start', { call: command.call, method: command.method });
    const running = new Running(this.#channel, command);
    const call = running.begin(() => {
      if (this.#open.get(command.call) === call) {
        this.#open.delete(command.call);
      }
    });
    if (!call) {
      return;
    }
    this.#open.set(command.call, call);
    if (command.cancel_after_ms > 0) {
      setTimeout(() => this.#cancel(command.call), command.cancel_after_ms);
    }
  }

  #cancel(name) {
    this.#open.get(name)?.cancel();
    this.#open.delete(name);
  }
}

/** One call from its start to its end. */
class Running {
  #channel;
  #command;
  #arguments;
  #ledger = new Ledger();
  #ended = new AbortController();

  constructor(channel, command) {
    this.#channel = channel;
    this.#command = command;
    this.#arguments = argumentsOf(command);
  }

  /** Gives the library's call; none when there is no such method. `gone` is called when it has ended. */
  begin(gone) {
    const { method } = this.#command;
    const kinds = {
      echo: () => this.#echo(),
      never: () => this.#unary('Never', Buffer.alloc(0), () => {}),
      fail: () => this.#unary('Fail', Buffer.alloc(0), () => {}),
      deadline: () => this.#unary('Deadline', Buffer.alloc(0), (answer) => left(answer)),
      ticks: () => this.#ticks(),
      check: () => this.#check(),
    };
    if (!Object.hasOwn(kinds, method)) {
      this.#end({ code: grpc.status.UNIMPLEMENTED, details: `no such method: ${method}` }, {});
      return undefined;
    }
    this.#ended.signal.addEventListener('abort', gone);
    return kinds[method]();
  }

  #end({ code, details }, more) {
    this.#ended.abort();
    emit('end', {
      call: this.#command.call,
      status: grpc.status[code],
      message: code === grpc.status.OK ? '' : details,
      ...more,
      ...this.#ledger.totals(),
    });
  }

  /** Metadata and options of a call. */
  #how() {
    const metadata = new grpc.Metadata();
    metadata.set('lab-call', this.#command.call);
    metadata.set('lab-args', JSON.stringify(this.#arguments));
    const deadline = this.#command.deadline_ms > 0 ? { deadline: Date.now() + this.#command.deadline_ms } : {};
    return [metadata, deadline];
  }

  #unary(method, request, answered) {
    return this.#channel.makeUnaryRequest(`/lab.Lab/${method}`, raw, raw, request, ...this.#how(), (error, answer) => {
      const more = error ? {} : answered(answer);
      this.#end(error ?? { code: grpc.status.OK }, more);
    });
  }

  #echo() {
    const request = new Source(this.#arguments.seed).take(this.#arguments.bytes);
    this.#ledger.sent.add(request);
    return this.#unary('Echo', request, (answer) => this.#ledger.received.add(answer));
  }

  #ticks() {
    const call = this.#channel.makeServerStreamRequest('/lab.Lab/Ticks', raw, raw, Buffer.alloc(0), ...this.#how());
    let n = 0;
    call.on('data', () => {
      n++;
      emit('message', { call: this.#command.call, n });
      if (n === this.#command.read_most) {
        call.pause();
      }
    });
    return this.#followed(call);
  }

  #check() {
    const call = this.#channel.makeBidiStreamRequest('/lab.Lab/Check', raw, raw, ...this.#how());
    call.on('data', (bytes) => this.#ledger.received.add(bytes));
    this.#ledger.watch(this.#command.call, this.#ended.signal);
    const { send: total, send_rate: rate = 0 } = this.#command;
    const amount = { total: total ?? 0, chunk: this.#arguments.chunk, rate };
    const source = new Source(this.#arguments.seed);
    void pour(source, this.#ledger.sent, amount, call, this.#ended.signal).then((complete) => {
      if (complete) {
        call.end();
      }
    });
    return this.#followed(call);
  }

  #followed(call) {
    // `status` below says the same, and comes for a good end too.
    call.on('error', () => {});
    call.on('status', (status) => this.#end(status, {}));
    return call;
  }
}

function left(answer) {
  const text = answer.toString();
  return text === 'none' ? {} : { left_ms: Number(text) };
}
