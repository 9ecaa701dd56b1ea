z *
{"kind":"inbound"}8-20