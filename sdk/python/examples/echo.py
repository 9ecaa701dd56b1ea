"""Answers each call with its own body; or, if the path is `/to/NAME`, with what the function of that name answers.

Start it as a function with `protocol: chain`, with the folder of `leno.py` in PYTHONPATH.
"""

import leno


def main():
    for call in leno.Chain():
        if call.path.startswith("/to/"):
            with call.call(call.path[4:], "/", body=call.body).wait() as answer:
                call.answer(answer.status, body=answer.body)
        else:
            call.answer(200, body=call.body)


main()
