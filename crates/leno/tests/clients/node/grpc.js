// Drives a gateway with grpc-js: `node grpc.js ADDRESS`. Prints a line for each case that passed.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { change, limit, run } from './cases.js';

const grpc = createRequire(`${process.env.LENO_CLIENTS}/`)('@grpc/grpc-js');
const name = 'grpc-js';
const { status } = grpc;
const client = new grpc.Client(process.argv[2], grpc.credentials.createInsecure(), { 'grpc.max_receive_message_length': 16 << 20 });
const as = (value) => value;
const options = (within = limit) => ({ deadline: Date.now() + within });
const path = (method) => (method.includes('/') ? method : `/test.Calls/${method}`);

function unary(method, message, metadata = new grpc.Metadata(), within = limit) {
  return new Promise((resolve, reject) => {
    const answer = {};
    const call = client.makeUnaryRequest(path(method), as, as, message, metadata, options(within), (error, response) => {
      answer.response = response;
      if (error) reject(error);
    });
    call.on('metadata', (head) => { answer.head = head; });
    call.on('status', (end) => { if (end.code === status.OK) resolve({ ...answer, trailers: end.metadata }); });
  });
}

const down = (method, message, within) => client.makeServerStreamRequest(path(method), as, as, message, new grpc.Metadata(), options(within));
const fails = (call, code) => assert.rejects(call, (error) => { assert.equal(error.code, code, error.message); return true; });

async function both() {
  const call = client.makeBidiStreamRequest(path('Both'), as, as, new grpc.Metadata(), options());
  let count = 0;
  call.write(Buffer.from('message 0'));
  for await (const message of call) {
    assert.equal(message.toString(), `message ${count}`);
    count += 1;
    if (count < 50) call.write(Buffer.from(`message ${count}`));
    else call.end();
  }
  assert.equal(count, 50);
}

async function withDetails(method) {
  await assert.rejects(unary(method, Buffer.alloc(0)), (error) => {
    assert.equal(error.code, status.FAILED_PRECONDITION, error.message);
    assert.equal(error.details, 'not now, café');
    assert.ok(error.metadata.get('grpc-status-details-bin')[0].length > 9000);
    return true;
  });
}

async function deadline(method) {
  const call = down(method, Buffer.from(`deadline ${name}`), 300);
  await fails((async () => { for await (const _ of call); })(), status.DEADLINE_EXCEEDED);
}

await run({
  async 'unary'() {
    for (let count = 0; count < 100; count += 1) assert.equal((await unary('Unary', Buffer.from('hello'))).response.toString(), 'hello');
  },
  async 'large'() {
    const message = Buffer.alloc(4 << 20, '0123456789abcdef');
    assert.ok((await unary('Unary', message)).response.equals(message));
  },
  async 'metadata'() {
    const metadata = new grpc.Metadata();
    const [text, binary] = ['v'.repeat(9000), Buffer.alloc(9000, Buffer.from([0, 255]))];
    metadata.add('x-echo', text);
    metadata.add('x-echo', 'second');
    metadata.add('x-echo-bin', binary);
    const { head, trailers } = await unary('Unary', Buffer.alloc(0), metadata);
    for (const fields of [head, trailers]) {
      assert.deepEqual(fields.get('x-echo').join(', '), `${text}, second`);
      assert.ok(fields.get('x-echo-bin')[0].equals(binary));
    }
  },
  async 'server streaming'() {
    let count = 0;
    for await (const message of down('Down', Buffer.from('1000 1000'))) {
      assert.equal(message.length, 1000);
      count += 1;
    }
    assert.equal(count, 1000);
  },
  async 'client streaming'() {
    const response = await new Promise((resolve, reject) => {
      const call = client.makeClientStreamRequest(path('Up'), as, as, new grpc.Metadata(), options(), (error, got) => (error ? reject(error) : resolve(got)));
      for (let count = 0; count < 1000; count += 1) call.write(Buffer.alloc(1000, 'u'));
      call.end();
    });
    assert.equal(response.toString(), '1000 1000000');
  },
  'bidirectional': both,
  'refused with details': () => withDetails('Refuse'),
  'failed late with details': () => withDetails('Late'),
  'deadline before the head': () => deadline('Silent'),
  'deadline after the head': () => deadline('Quiet'),
  async 'cancel'() {
    const message = Buffer.from(`cancel ${name}`);
    const call = down('Quiet', message);
    await fails((async () => { for await (const _ of call) call.cancel(); })(), status.CANCELLED);
    while ((await unary('Ended', message)).response.toString() !== 'yes') await new Promise((resolve) => { setTimeout(resolve, 5); });
  },
  async 'unknown method'() {
    await fails(unary('Unknown', Buffer.alloc(0)), status.UNIMPLEMENTED);
    await fails(unary('/test.Unknown/Unary', Buffer.alloc(0)), status.UNIMPLEMENTED);
  },
  async 'a hundred at once'() {
    await Promise.all(Array.from({ length: 100 }, both));
  },
  'change': () => change(async () => (await unary('Unary', Buffer.from('hello'))).head.get('x-version')[0]),
});
client.close();
