"""C sources of stand-alone programs: plain C99, libc and POSIX threads only.

    ingot_program.h  what a program is, as data (the description is generated, see frontends/native/source.py)
    support.c        messages, arguments, threads, binding dims, calling
    arrays.c         .npy files
    order.c          the order of examples that ingot.data.Batches has
    checkpoint.c     safetensors files that Trainer.load reads, and the other way round
    run_main.c       main of an executable that runs a model
    train_main.c     main of an executable that trains

They are compiled by `ingot.build` only; nothing else in Ingot needs a C compiler.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SHARED = ("support.c", "arrays.c")
RUN = (*SHARED, "run_main.c")
TRAIN = (*SHARED, "order.c", "checkpoint.c", "train_main.c")
