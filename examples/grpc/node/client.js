// A Node client on a mapping: node client.js TARGET SECONDS
//
// TARGET is unix:/run/user/1000/hopline/ledger.sock, or 127.0.0.1:7901 for a TCP mapping.

import { setTimeout as sleep } from 'node:timers/promises';

import grpc from '@grpc/grpc-js';

// For every method: UNAVAILABLE is tried again. Methods that must not run twice don't belong here.
const serviceConfig = {
  methodConfig: [
    {
      name: [{}],
      retryPolicy: {
        maxAttempts: 5,
        initialBackoff: '0.2s',
        maxBackoff: '2s',
        backoffMultiplier: 2,
        retryableStatusCodes: ['UNAVAILABLE'],
      },
    },
  ],
};

const [target, seconds] = process.argv.slice(2);
// One client, so one channel, for the whole process, without keepalive.
const client = new grpc.Client(target, grpc.credentials.createInsecure(), {
  'grpc.service_config': JSON.stringify(serviceConfig),
});

// In place of a generated stub: the health check of the empty service has an empty request.
const raw = (bytes) => bytes;
const check = () =>
  new Promise((resolve, reject) => {
    // The deadline covers all tries. Without one, a server that accepts and is silent is waited for without end.
    const options = { deadline: Date.now() + 10_000 };
    const done = (error, answer) => (error ? reject(error) : resolve(answer));
    client.makeUnaryRequest('/grpc.health.v1.Health/Check', raw, raw, Buffer.alloc(0), new grpc.Metadata(), options, done);
  });

let good = 0;
let failed = 0;
for (const end = Date.now() + seconds * 1000; Date.now() < end; await sleep(100)) {
  try {
    await check();
    good++;
  } catch (error) {
    failed++;
    console.error(error.message);
  }
}
console.log(`${good} good, ${failed} failed`);
client.close();
