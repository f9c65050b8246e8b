"""The domain of the embedded voice: short English sentences from templates over about 250 words.

No number words (an ASR writes them as digits) and no homophones that an ASR could spell otherwise.
Training and held-out sentences are disjoint: a sentence belongs to the split its hash says.
"""

from __future__ import annotations

import hashlib

import numpy as np

PEOPLE = """the teacher|my brother|her sister|the farmer|a doctor|the captain|our neighbor
|the baker|the old man
|a young woman|the children|my mother|his father|the singer|the driver|a student|the painter
|the queen|my uncle
|the gardener|our friend|the nurse|the sailor|a stranger""".replace("\n", "")
ANIMALS = """the dog|a cat|the horse|the rabbit|a bird|the brown bear|the lion|the chicken|a turtle|the monkey
|the elephant|a spider""".replace("\n", "")
THINGS = """the book|a letter|the window|the garden|a basket|the old clock|the table|a blanket
|the camera|the guitar
|the bottle|the paper|a ladder|the kitchen|the picture|a candle|the hammer|the jacket|the pencil|the mirror
|the wooden box|a yellow cup|the green apple|the silver spoon""".replace("\n", "")
PLACES = """in the garden|near the river|by the window|under the bridge|at the market|behind the house
|on the mountain|in the village|at the station|near the forest|across the street|on the island|in the kitchen
|beside the lake|inside the castle|at the beach""".replace("\n", "")
TIMES = """today|yesterday|every morning|in the evening|after dinner|before lunch|last summer|in the winter
|on Monday|every Sunday|this afternoon|at midnight""".replace("\n", "")
ACTS = """found|lost|carried|painted|opened|wanted|dropped|cleaned|borrowed|watched|repaired
|remembered|finished
|bought|covered|moved""".replace("\n", "")
MOVES = (
    """walked|slept|waited|danced|worked|laughed|listened|stopped|traveled|played|stayed|rested""".replace(
        "\n", ""
    )
)
LOOKS = """happy|hungry|quiet|angry|tired|gentle|careful|nervous|famous|friendly|curious|patient""".replace(
    "\n", ""
)
WEATHER = """the weather|the water|the morning|the music|the coffee|the summer|the evening|the soup|the road
|the story""".replace("\n", "")
STATES = """very cold|too loud|almost perfect|really warm|quite different|a little strange|simply wonderful
|rather slow|still beautiful|never easy""".replace("\n", "")
MODALS = """should|could|must|never""".replace("\n", "")
VERBS = """open|carry|find|clean|watch|move|remember|borrow|cover|finish""".replace("\n", "")

SLOTS = {
    "who": PEOPLE, "animal": ANIMALS, "thing": THINGS, "place": PLACES, "time": TIMES, "did": ACTS,
    "moved": MOVES, "look": LOOKS, "it": WEATHER, "state": STATES, "modal": MODALS, "do": VERBS,
}  # fmt: skip
TEMPLATES = """{who} {did} {thing}|{who} {did} {thing} {time}|{who} {moved} {place}|{animal} {moved} {place}
|{animal} was {look} {time}|{who} was {look} {place}|{it} was {state}|{it} was {state} {time}
|{who} and {animal} {moved} {place}|please {do} {thing} {time}|you {modal} {do} {thing}
|we {modal} {do} {thing} {time}
|{thing} was {place}|{who} saw {animal} {place}|{animal} {did} {thing}|why was {who} so {look}
|{who} gave {thing} to {who2}|{time} {who} {moved} {place}""".replace("\n", "").split("|")
_CHOICES = {name: words.split("|") for name, words in SLOTS.items()}
HELD_OUT_SHARE = 0.1


def sentence(rng: np.random.Generator) -> str:
    """One sentence of 4 to 10 words, lower case, without final punctuation."""
    template = TEMPLATES[rng.integers(len(TEMPLATES))]
    fills = {name: words[rng.integers(len(words))] for name, words in _CHOICES.items()}
    fills["who2"] = _CHOICES["who"][rng.integers(len(_CHOICES["who"]))]
    return template.format(**fills)


def is_held_out(text: str) -> bool:
    """Whether the sentence belongs to the held-out split (by its hash, so whatever the order)."""
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return digest / 2**64 < HELD_OUT_SHARE


def sentences(count: int, held_out: bool, seed: int) -> list[str]:
    """``count`` distinct sentences of one split."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    found: dict[str, None] = {}
    while len(found) < count:
        text = sentence(rng)
        if is_held_out(text) == held_out:
            found.setdefault(text)
    return list(found)


def written(text: str) -> str:
    """As a person writes it: capital first, full stop or question mark."""
    return text[0].upper() + text[1:] + ("?" if text.startswith("why") else ".")
