"""What a recording says, without a judgement: calls, their partners and waits, and the iterations of a training job."""
