"""The light of the motion chain, in Python.

Start it in place of `boutique actuator`, with the folder of `leno.py` in PYTHONPATH.
"""

import time

import leno

PATH = "/boutique.v1.Actuator/Switch"
# `Motion` and `Switched` have one field each: tags of Protocol Buffers.
SENSOR, ON = 0x0A, 0x08
SERVICE = 0.001


def main():
    for call in leno.Chain():
        if call.path != PATH:
            call.answer(404)
            continue
        motion = bytes(call.body)
        time.sleep(SERVICE)
        seen = len(motion) > 2 and motion[0] == SENSOR and motion[1] > 0
        call.answer(200, body=bytes([ON, 1]) if seen else b"")


main()
