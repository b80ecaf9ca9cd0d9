"""Tests of what figures are made with: `python3 -m unittest test_ratios` in this directory."""

import unittest

from ratios import Turn, Turns, interval


class Ratios(unittest.TestCase):
    def test_the_interval_is_the_textbook_pair_of_order_statistics(self):
        # Ranks for 95 %: of 6 samples the 1st and 6th, of 9 the 2nd and 8th, of 15 the 4th and 12th, of 20 the 6th and 15th.
        for n, rank, coverage in [(6, 1, 0.969), (9, 2, 0.961), (15, 4, 0.965), (20, 6, 0.959)]:
            found = interval([float(x) for x in range(n, 0, -1)])
            self.assertEqual((found.low, found.high), (rank, n + 1 - rank))
            self.assertAlmostEqual(found.coverage, coverage, delta=5e-4)
            self.assertEqual(found.median, (n + 1) / 2)

    def test_few_samples_give_their_range_and_say_what_it_is_worth(self):
        found = interval([3.0, 1.0, 2.0])
        self.assertEqual((found.low, found.median, found.high, found.coverage), (1.0, 2.0, 3.0, 0.75))
        self.assertEqual(interval([5.0]).coverage, 0.0)
        self.assertIsNone(interval([]))

    def test_only_turns_of_the_same_round_are_compared(self):
        turns = Turns([Turn(r, name, "kv", {"x": x}) for r, name, x in [(0, "a", 2), (0, "b", 1), (1, "a", 9), (2, "b", 7)]])
        ratio = turns.ratio("a", "b", "kv", "x")
        self.assertEqual((ratio.median, ratio.samples), (2, 1))
        self.assertEqual(turns.best(["a", "b", "none"], "kv", "x"), "a")
        self.assertEqual(turns.best(["a", "b"], "kv", "x", min), "b")
        self.assertIsNone(turns.best(["none"], "kv", "x"))


if __name__ == "__main__":
    unittest.main()
