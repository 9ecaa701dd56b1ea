'use strict';
// Answers each call with its own body; or, if the path is `/to/NAME`, with what the function of that name answers. Start it as a function with
// `protocol: chain`.
const { Chain } = require('../leno');

async function handle(call) {
  if (!call.path.startsWith('/to/')) return call.answer(200, { body: call.body });
  const answer = await call.call({ authority: call.path.slice(4), body: call.body });
  call.answer(answer.status, { body: answer.body });
  answer.close();
}

async function main() {
  for await (const call of await Chain.open()) {
    handle(call).catch((error) => {
      console.error(error);
      call.close();
    });
  }
}

main();
