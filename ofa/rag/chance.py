"""
How near a collection comes to questions that have nothing to do with it: by chance.

Of thousands of passages the nearest to any question is not far, and the more there are,
the nearer it is; how near also depends on the embedding model. A hundred questions of
daily life, put to a collection when it is built, tell what a cosine is worth there.
Knows vectors; nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

# A vector a question makes the figures of two indexes of one collection comparable: the
# same ones for all. Change one, and every collection is measured anew.
QUESTIONS = """
    How long should I boil an egg so that the yolk stays soft?
    What is a good substitute for butter in a chocolate cake?
    Which wine goes well with grilled salmon?
    How do I keep basil alive on the kitchen window?
    Why does my bread not rise in the oven?
    Can you suggest a vegetarian dinner for six people?
    How many calories are in a banana?
    What should I pack for a week of hiking in Norway?
    Is it safe to travel to Morocco in August?
    Which train goes from Paris to Lyon on Sunday morning?
    Do I need a visa for Japan?
    How do I claim a refund for a cancelled flight?
    What is the best time of the year to visit Iceland?
    Who won the football world cup in 1998?
    Explain the offside rule in simple words
    How do I train for my first marathon?
    What are the rules of table tennis doubles?
    My knee hurts after running, what can I do?
    How much sleep does a toddler need?
    Which vitamins are in spinach?
    What is the difference between a cold and the flu?
    How do I lower my blood pressure without medicine?
    Can I take ibuprofen and paracetamol together?
    Write a birthday card for my grandmother
    Tell me a joke about cats
    Write a short poem about the autumn rain
    Give me ten names for a small coffee shop
    Summarise the plot of Romeo and Juliet
    Who painted the ceiling of the Sistine Chapel?
    When did the Roman empire fall and why?
    What caused the first world war?
    Who was the first woman to win a Nobel prize?
    What is the capital of Peru?
    How high is the highest mountain of South America?
    Why is the sky blue in the day and red in the evening?
    How do bees find their way home?
    What do hedgehogs eat in the winter?
    How old can a tortoise become?
    How do I get my puppy to stop biting?
    Which plants need little light in a bathroom?
    When should I cut my roses?
    How do I remove a red wine stain from a carpet?
    What is the best way to clean a leather sofa?
    My washing machine leaks, who should I call?
    How do I change the tyre of a bicycle?
    How often does a car need new oil?
    Is it cheaper to lease a car or to buy one?
    How does a mortgage with a fixed rate work?
    What is the difference between shares and bonds?
    How do I file my income tax return?
    Write a letter to my landlord about the broken heating
    How do I ask my boss for a higher salary?
    Draft a cover letter for a job as a nurse
    What should I wear to a wedding in the summer?
    How do I tie a bow tie?
    Recommend a crime novel that is set in Venice
    Which films did Alfred Hitchcock make in the fifties?
    Who sings the song about the yellow submarine?
    How do I learn to play the guitar as an adult?
    What is a sonata?
    Translate good morning into Portuguese
    What does the French word dépaysement mean?
    Is it who or whom in this sentence?
    Correct the grammar of my essay about friendship
    Explain the difference between affect and effect
    How do I say thank you in Korean?
    What are the main ideas of stoic philosophy?
    Explain the trolley problem
    How does the electoral college work?
    What does the constitution say about free speech?
    How do I get a divorce without a lawyer?
    What are my rights if a parcel is lost in the post?
    How do I centre a picture on a web page with CSS?
    Why does my React component render twice?
    How do I add a pivot table in Excel?
    Write a SQL query that joins customers and orders
    How do I set up a WordPress blog?
    What is the difference between Java and JavaScript?
    How do I reset the password of my email account?
    Why is my phone battery empty so fast?
    Which laptop should a student buy this year?
    How do I connect my headphones to the television?
    My printer says that it is out of paper but it is not
    How do I block unwanted calls?
    What is a blockchain?
    Will artificial intelligence take my job?
    What is the weather like in Berlin tomorrow?
    What time is it in New York now?
    How many days are left until Christmas?
    Convert twelve stone into kilograms
    What is seventeen percent of two hundred and thirty?
    How do I prove that the square root of two is irrational?
    What is the chemical formula of table salt?
    How does photosynthesis work?
    What is the role of the mitochondria in a cell?
    How do vaccines work?
    What is the difference between weather and climate?
    How are volcanoes formed?
    Why did the dinosaurs die out?
    How far away is the moon?
""".strip().split("\n")


class Asking(Protocol):
    """What turns a question into a vector: an `Embedder`."""

    def query(self, text: str) -> Vectors:
        """Return the unit vector of a question."""


@dataclass(frozen=True)
class Chance:
    """
    The best cosine that a question off every topic has: its mean and its spread.

    Without a measurement, a scale on which a cosine is what it is.
    """

    mean: float = 0.0
    spread: float = 0.05  # MiniLM's is within 0.01 of it in all collections looked at

    def beyond(self, cosine: float) -> float:
        """Return how far *cosine* is beyond chance, in spreads."""
        return (cosine - self.mean) / self.spread


def measure(passages: Vectors, embedder: Asking) -> Chance:
    """Return what chance comes to among *passages*, unit rows of one embedder."""
    if not len(passages):
        return Chance()
    asked = np.stack([embedder.query(text.strip()) for text in QUESTIONS])
    best = (passages @ asked.T).max(axis=0)
    # Passages that are all alike would make any difference a great one.
    return Chance(float(best.mean()), max(float(best.std()), Chance.spread / 5))
