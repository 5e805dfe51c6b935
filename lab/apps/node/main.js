// The lab's gRPC application in JavaScript: a server and a client in one program. The command line and the lines that
// it prints are those of ../README.md, the same in every language.

import { createRequire } from 'node:module';
import { parseArgs } from 'node:util';

import { runClient } from './client.js';
import { emit } from './events.js';
import { serve } from './server.js';

const FLAGS = {
  server: {
    listen: { type: 'string', default: '127.0.0.1:0' },
    'permit-keepalive': { type: 'boolean', default: false },
    'max-streams': { type: 'string', default: '0' },
  },
  client: {
    target: { type: 'string' },
    'keepalive-ms': { type: 'string', default: '0' },
    'keepalive-timeout-ms': { type: 'string', default: '20000' },
    'keepalive-idle': { type: 'boolean', default: false },
    window: { type: 'string', default: '0' },
    // The library's default is a good one already.
    'own-authority': { type: 'boolean', default: false },
  },
  version: {},
};

function usage(why) {
  console.error(`${why}\nusage: server|client|version [flags], see lab/apps/README.md`);
  process.exit(2);
}

function flags(role) {
  if (!Object.hasOwn(FLAGS, role)) {
    usage(`no such role: ${role}`);
  }
  try {
    return parseArgs({ args: process.argv.slice(3), options: FLAGS[role] }).values;
  } catch (error) {
    return usage(error.message);
  }
}

function number(text) {
  return /^\d+$/.test(text) ? Number(text) : usage(`not a number: ${text}`);
}

const role = process.argv[2] ?? '';
const asked = flags(role);
if (role === 'server') {
  // A server never objects to pings: there is nothing to permit.
  serve(asked.listen, number(asked['max-streams']));
} else if (role === 'client') {
  runClient(asked.target ?? usage('--target is missing'), {
    intervalMs: number(asked['keepalive-ms']),
    timeoutMs: number(asked['keepalive-timeout-ms']),
    idle: asked['keepalive-idle'],
  }, number(asked.window));
} else {
  const { version } = createRequire(import.meta.url)('@grpc/grpc-js/package.json');
  emit('version', { impl: 'node', library: `grpc-js ${version}`, runtime: `node ${process.version}` });
}
