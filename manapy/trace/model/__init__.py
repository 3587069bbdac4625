"""The content of a recording, without a judgement: calls, their partners and waits, and a training job's iterations."""
