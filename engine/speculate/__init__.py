"""Speculative decoding: guess a few tokens, check them all in one step, keep those that are right.

A proposer guesses the k tokens that follow. The row runs with them appended, and at each of the
k + 1 places a token is chosen exactly as without speculation: `engine.choice` is a function of
(logits, settings, seed, position) and nothing else. While the chosen token is the guessed one, the
next place saw the right prefix and its choice stands too; the first that differs is taken, and what
lies beyond it is thrown away. So the output is, token by token, what it would have been without
guesses, for greedy and for sampled rows.

Rejection sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318) keeps the
distribution only, and for a guess without a distribution of its own (a point mass, as any proposer
here gives) it accepts token x with probability p(x). This check accepts when the draw of that
position falls on x, which has the same probability p(x), and otherwise the draw is already one from
p conditioned on "not x", the residual distribution. It accepts as often, needs no second draw, and
a seed goes on meaning the same text. A draft model that draws with the target's own uniform
number of that position (a coupling of the two draws) is right more often than one that draws alone.
"""
