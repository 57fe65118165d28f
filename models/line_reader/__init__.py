"""A reader of lines of handwritten digits, trained with the op `CtcLoss`.

The data are lines of three to seven of scikit-learn's images of handwritten digits, side by side, some of them
touching, each a little higher or lower than the one before. The network looks at a few columns of a line at a time, and
says for each column which of the ten digits it sees there, or none. Training tells it the digits of a line, and not
where they stand: CTC, connectionist temporal classification, adds up the probabilities of all ways to spread the digits
over the columns, and its gradient makes the likely ones likelier. So the network finds out by itself where a digit ends
and the next begins. It is tried on the digits of writers that it has seen nothing of.
"""
