"""The grammar of the toy corpora: English sentences, their parse, and a German translation that depends on it.

*Attachment.* "The man saw the girl with the telescope near the tree .": each phrase attaches to the verb or to any noun
after it, drawn at random, and the translation names the word it attaches to: "der Mann sah das Mädchen mit dem Fernrohr
(sah) neben dem Baum (Fernrohr) .". What can be known of that word:

- from the text: prepositions, verbs and nouns have one of four classes, and the words that a phrase may attach to are
  of different classes. With probability ``lexical`` the preposition is of its governor's class, else of any. So 0 makes
  the text silent, and 1 makes it tell all.
- from a parser that errs: its probabilities over the candidates are drawn first and the governor is drawn from them,
  so that they are calibrated whatever they are; the mean of the largest is the parser's accuracy.

:func:`posterior` combines the two by Bayes' rule, from which the best possible accuracy of every system follows.

*Homograph.* "The man saw her duck .": "ihre Ente" (a noun) or "sie tauchen" (a verb), drawn at random and not to be
seen in the source or its parse. Only the tags of the target tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from fairseq_syntax.corpus.conllu import ParsedLine, Token
from fairseq_syntax.corpus.parsed_line import depths as depths_of

CLASSES = 4
ONE_IN_THREE = (True, False, False)
ARTICLES = {"m": ("der", "den", "dem"), "f": ("die", "die", "der"), "n": ("das", "das", "dem")}
POSSESSIVES = {"m": "ihren", "f": "ihre", "n": "ihr"}


@dataclass(frozen=True)
class Lexicon:
    """Words with their translations; the class of a word is its place in its list, modulo four."""

    nouns: list[str]  # English/German/gender
    verbs: list[str]
    prepositions: list[str]
    adjectives: list[str]  # English/German stem

    def of_class(self, kind: str, number: int) -> list[str]:
        return getattr(self, kind)[number::CLASSES]


def entries(text: str) -> list[str]:
    """The entries of a lexicon, which white space separates."""
    return text.split()


LEXICON = Lexicon(
    nouns=entries(
        "man/Mann/m woman/Frau/f girl/Mädchen/n dog/Hund/m painter/Maler/m telescope/Fernrohr/n "
        "garden/Garten/m river/Fluss/m bicycle/Fahrrad/n umbrella/Regenschirm/m station/Bahnhof/m child/Kind/n "
        "tree/Baum/m bridge/Brücke/f horse/Pferd/n table/Tisch/m musician/Musiker/m picture/Bild/n "
        "building/Gebäude/n cat/Katze/f"
    ),
    verbs=entries(
        "saw/sah found/fand painted/malte followed/verfolgte noticed/bemerkte liked/mochte carried/trug drew/zeichnete"
    ),
    prepositions=entries("with/mit near/bei behind/hinter under/unter from/von beside/neben after/nach above/über"),
    adjectives=entries("old/alt young/jung small/klein tall/groß happy/froh quiet/still"),
)
HOMOGRAPHS = entries(
    "duck/Ente/f/tauchen watch/Uhr/f/zuschauen walk/Spaziergang/m/gehen run/Lauf/m/rennen dance/Tanz/m/tanzen "
    "drink/Getränk/n/trinken play/Stück/n/spielen cook/Köchin/f/kochen fish/Fisch/m/angeln dream/Traum/m/träumen "
    "work/Arbeit/f/schuften talk/Vortrag/m/reden rest/Pause/f/ruhen answer/Antwort/f/erwidern"
)
PERCEPTION = entries("saw/sah heard/hörte watched/beobachtete noticed/bemerkte")


@dataclass
class Phrase:
    """One decision that the source text leaves open: which of ``sites`` (words of the sentence) governs it."""

    sites: list[int]
    governor: int  # index into sites
    fits: list[bool]  # per site: is it of the preposition's class?
    belief: list[float] | None = None  # of the parser, per site
    names: list[str] = field(default_factory=list)  # per site: what the translation calls it
    place: int = -1  # of the name in the translation

    @property
    def best(self) -> int:
        """The parser's first choice; without a parser, the governor."""
        return self.governor if self.belief is None else self.belief.index(max(self.belief))


@dataclass
class Sentence:
    """A sentence with its true parse, its translation with tags, and its open decisions."""

    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    deprels: list[str] = field(default_factory=list)
    phrases: dict[int, Phrase] = field(default_factory=dict)  # by the word whose head is open
    target: Sentence | None = None
    # (word of the source, word of the target, whether it is sure), of a source and its target
    links: list[tuple[int, int, bool]] = field(default_factory=list)

    def add(self, word: str, tag: str, head: int = -1, deprel: str = "root") -> int:
        self.words.append(word)
        self.tags.append(tag)
        self.heads.append(head)
        self.deprels.append(deprel)
        return len(self.words) - 1


def belief(rng: Random, sites: int, accuracy: float) -> list[float]:
    """A parser's probabilities over so many sites: the largest is ``accuracy`` on average, and anywhere.

    Parsers are mostly sure or at a loss: the largest probability is drawn between chance and 1 from a U-shaped Beta
    distribution, and the rest is split at random, none above the largest.
    """
    chance = 1 / sites
    if accuracy < chance:
        raise ValueError(f"an accuracy of {accuracy} is below chance among {sites} sites")
    share = (accuracy - chance) / (1 - chance)
    spread = 0.6
    top = 1.0 if share >= 1 else chance + (1 - chance) * rng.betavariate(spread * share, spread * (1 - share))
    rest = [(1 - top) / (sites - 1)] * (sites - 1)
    for _ in range(20):
        weights = [rng.expovariate(1) for _ in rest]
        tried = [(1 - top) * weight / sum(weights) for weight in weights]
        if max(tried) <= top:
            rest = tried
            break
    rest.insert(rng.randrange(sites), top)
    return rest


def attachment(
    rng: Random, phrases: int, *, lexical: float = 0.0, accuracy: float | None = None, lexicon: Lexicon = LEXICON
) -> Sentence:
    """A sentence with 0 to 2 prepositional phrases.

    Args:
        rng: source of every choice
        phrases: how many
        lexical: probability that a preposition is of its governor's class
        accuracy: of a parser whose probabilities are drawn along; None: the parse is right
        lexicon: words to use
    """
    if not 0 <= phrases <= CLASSES - 2:
        raise ValueError(f"{phrases} phrases: their candidates are to differ in class, of which there are {CLASSES}")
    sentence, target = Sentence(), Sentence()
    classes = list(range(CLASSES))
    verb_class = rng.choice(classes)
    verb, german_verb = rng.choice(lexicon.of_class("verbs", verb_class)).split("/")
    classes.remove(verb_class)
    site_classes, nouns = [verb_class], []
    for _ in range(phrases + 1):
        site_classes.append(rng.choice(classes))
        classes.remove(site_classes[-1])
        nouns.append(rng.choice(lexicon.of_class("nouns", site_classes[-1])))
    subject = rng.choice([noun for noun in lexicon.nouns if noun not in nouns])

    def link(source_word: int, target_word: int, sure: bool = True) -> None:
        sentence.links.append((source_word, target_word, sure))

    def noun_phrase(entry: str, case: int, deprel: str, preposition: str | None = None) -> int:
        english, german, gender = entry.split("/")
        if preposition:
            english_preposition, german_preposition = preposition.split("/")
            case_word = sentence.add(english_preposition, "ADP", deprel="case")
            link(case_word, target.add(german_preposition, "ADP"))
        article = sentence.add("the", "DET", deprel="det")
        link(article, target.add(ARTICLES[gender][case], "DET"))
        dependents = [article] + ([case_word] if preposition else [])
        if lexicon.adjectives and bool(rng.choice(ONE_IN_THREE)):
            adjective, stem = rng.choice(lexicon.adjectives).split("/")
            dependents.append(sentence.add(adjective, "ADJ", deprel="amod"))
            ending = "en" if case == 2 or (case == 1 and gender == "m") else "e"
            link(dependents[-1], target.add(stem + ending, "ADJ"))
        noun = sentence.add(english, "NOUN", deprel=deprel)
        link(noun, target.add(german, "NOUN"))
        for dependent in dependents:
            sentence.heads[dependent] = noun
        return noun

    first = noun_phrase(subject, 0, "nsubj")
    root = sentence.add(verb, "VERB")
    link(root, target.add(german_verb, "VERB"))
    sites = [root, noun_phrase(nouns[0], 1, "obj")]
    names = [german_verb, nouns[0].split("/")[1]]
    sentence.heads[first] = sentence.heads[root] = sentence.heads[sites[1]] = root
    for entry in nouns[1:]:
        p = None if accuracy is None else belief(rng, len(sites), accuracy)
        governor = rng.choice(range(len(sites))) if p is None else rng.choices(range(len(sites)), p)[0]
        chances = [(1 - lexical) / CLASSES] * CLASSES
        chances[site_classes[governor]] += lexical
        wanted = rng.choices(range(CLASSES), chances)[0]
        noun = noun_phrase(
            entry, 2, "obl" if governor == 0 else "nmod", rng.choice(lexicon.of_class("prepositions", wanted))
        )
        link(sites[governor], target.add(f"({names[governor]})", "X"), False)
        sentence.heads[noun] = sites[governor]
        fits = [site_class == wanted for site_class in site_classes[: len(sites)]]
        place = len(target.words) - 1
        sentence.phrases[noun] = Phrase(list(sites), governor, fits, p, list(names), place)
        sites.append(noun)
        names.append(entry.split("/")[1])
    link(sentence.add(".", "PUNCT", root, "punct"), target.add(".", "PUNCT"))
    parse_target(sentence, target)
    sentence.target = target
    return sentence


def parse_target(sentence: Sentence, target: Sentence) -> None:
    """The translation's tree is that of the source, word by word; what is in brackets hangs on its phrase's noun."""
    place = {word: at for word, at, sure in sentence.links if sure}
    for word, at in place.items():
        target.heads[at], target.deprels[at] = place[sentence.heads[word]], sentence.deprels[word]
    for noun, phrase in sentence.phrases.items():
        target.heads[phrase.place], target.deprels[phrase.place] = place[noun], "dep"


def homograph(rng: Random, count: int) -> Sentence:
    """A sentence with so many homographs, 0 to 2, each a noun or a verb in the translation alone."""
    sentence, target = Sentence(), Sentence()
    english, german, gender = rng.choice(LEXICON.nouns).split("/")
    verb, german_verb = rng.choice(PERCEPTION).split("/")
    for side, article, noun, root in (
        (sentence, "the", english, verb),
        (target, ARTICLES[gender][0], german, german_verb),
    ):
        side.add(article, "DET", 1, "det")
        side.add(noun, "NOUN", 2, "nsubj")
        side.add(root, "VERB", 2)
    first = 0
    for index, entry in enumerate(_distinct(rng, HOMOGRAPHS, count)):
        word, noun, gender, infinitive = entry.split("/")
        governor = rng.choice(range(2))
        if index:
            sentence.add("and", "CCONJ", len(sentence.words) + 2, "cc")
            target.add("und", "CCONJ", len(target.words) + 2, "cc")
        # The source's parser always takes the word for a noun, and so tells nothing.
        sentence.add("her", "PRON", len(sentence.words) + 1, "nmod:poss")
        head, deprel = (first, "conj") if index else (2, "obj")
        place = sentence.add(word, "NOUN", head, deprel)
        if governor == 0:
            target.add(POSSESSIVES[gender], "DET", len(target.words) + 1, "det:poss")
            target.add(noun, "NOUN", head, deprel)
        else:
            target.add("sie", "PRON", len(target.words) + 1, "nsubj")
            target.add(infinitive, "VERB", head, deprel if index else "ccomp")
        first = first or place
        sentence.phrases[place] = Phrase([0, 1], governor, [False, False])
    if not count:
        english, german, gender = rng.choice(LEXICON.nouns).split("/")
        for side, article, noun in ((sentence, "the", english), (target, ARTICLES[gender][1], german)):
            side.add(article, "DET", 4, "det")
            side.add(noun, "NOUN", 2, "obj")
    for side in (sentence, target):
        side.add(".", "PUNCT", 2, "punct")
    sentence.target = target
    sentence.links = [(word, word, True) for word in range(len(target.words))]  # word by word
    return sentence


def alignment_of(line: list[Sentence]) -> str:
    """The known links of a line and its translation: ``0-0 1p2``, possible where the translation names a governor.

    Brackets are words of their own, as they are to ``fairseq-syntax align``.
    """
    links: list[str] = []
    first_source = first_target = 0
    for sentence in line:
        assert sentence.target is not None
        start, at = [], first_target
        for word in sentence.target.words:
            start.append(at)
            at += 3 if word.startswith("(") else 1
        for source, target, sure in sentence.links:
            places = range(start[target], start[target] + (1 if sure else 3))
            links += [f"{first_source + source}{'-' if sure else 'p'}{place}" for place in places]
        first_source, first_target = first_source + len(sentence.words), at
    return " ".join(links)


def _distinct(rng: Random, entries: list[str], count: int) -> list[str]:
    drawn: list[str] = []
    while len(drawn) < count:
        drawn.append(rng.choice([entry for entry in entries if entry not in drawn]))
    return drawn


def posterior(
    phrase: Phrase, lexical: float, *, knows: str, accuracy: float | None = None, depths: Sequence[int] = ()
) -> list[float]:
    """P(governor = site) for somebody who knows the text and more, by Bayes' rule.

    Args:
        phrase: the decision
        lexical: as the corpus was made
        knows: ``text``; or the text with the parser's best ``tree``, the parser's probabilities (``arcs``), the true
            dependency ``labels`` without the heads, the ``depth`` of each word in the true parse, or the true ``parse``
        accuracy: the parser's, for ``tree``
        depths: of the sentence's words, for ``depth``
    """
    sites = len(phrase.sites)
    weights = [(1 - lexical) / CLASSES + lexical * fits for fits in phrase.fits]
    if knows == "parse":
        weights = [float(site == phrase.governor) for site in range(sites)]
    elif knows == "labels":  # obl attaches to the verb, the first site, and nmod to a noun
        weights = [weight * ((site == 0) == (phrase.governor == 0)) for site, weight in enumerate(weights)]
    elif knows == "depth":  # the governor is one step above
        governor = depths[phrase.sites[phrase.governor]]
        weights = [weight * (depths[site] == governor) for site, weight in zip(phrase.sites, weights)]
    elif knows == "arcs" and phrase.belief is not None:
        weights = [weight * p for weight, p in zip(weights, phrase.belief)]
    elif knows == "tree" and accuracy is not None:
        other = (1 - accuracy) / (sites - 1)
        weights = [weight * (accuracy if site == phrase.best else other) for site, weight in enumerate(weights)]
    total = sum(weights)
    return [weight / total for weight in weights]


@dataclass(frozen=True)
class Pair:
    """A contrastive pair: the translation of a line, and one in which a phrase hangs on another of its candidates.

    Attributes:
        correct, incorrect: the target words of all sentences of the line
        category: the relation of the phrase, ``obl`` (to the verb) or ``nmod`` (to a noun)
        distance: in words, of the phrase's noun from its governor
    """

    correct: list[str]
    incorrect: list[str]
    category: str
    distance: int


def pairs(line: list[Sentence]) -> list[Pair]:
    """All wrong attachments of a line, one at a time: a phrase of n candidates makes n - 1 pairs."""
    words = [sentence.target.words if sentence.target else [] for sentence in line]
    found = []
    for number, sentence in enumerate(line):
        for noun, phrase in sentence.phrases.items():
            governor = phrase.sites[phrase.governor]
            for site, name in enumerate(phrase.names):
                if site == phrase.governor:
                    continue
                changed = list(words[number])
                changed[phrase.place] = f"({name})"
                incorrect = [*words[:number], changed, *words[number + 1 :]]
                correct, wrong = ([word for part in side for word in part] for side in (words, incorrect))
                found.append(Pair(correct, wrong, sentence.deprels[noun], noun - governor))
    return found


def best_on_pairs(
    sentence: Sentence, lexical: float, *, knows: str, accuracy: float | None = None
) -> tuple[float, float]:
    """How many of a sentence's pairs the best guess gets right: the mean and the variance, given what is known.

    Of two candidates the likelier one by :func:`posterior` is guessed; so a governor wins against all that are less
    likely than itself.
    """
    depths = depths_of(sentence.heads) if knows == "depth" else ()
    mean = variance = 0.0
    for phrase in sentence.phrases.values():
        p = sorted(posterior(phrase, lexical, knows=knows, accuracy=accuracy, depths=depths))
        own = sum(chance * beaten for beaten, chance in enumerate(p))
        mean += own
        variance += sum(chance * beaten**2 for beaten, chance in enumerate(p)) - own**2
    return mean, variance


def best_accuracy(line: list[Sentence], lexical: float, *, knows: str, accuracy: float | None = None) -> float:
    """The probability that the best possible guess of the line's translation is right, given what is known."""
    chance = 1.0
    for sentence in line:
        depth = depths_of(sentence.heads) if knows == "depth" else ()
        for phrase in sentence.phrases.values():
            chance *= max(posterior(phrase, lexical, knows=knows, accuracy=accuracy, depths=depth))
    return chance


def parse_of(line: list[Sentence], number: int, *, gold: bool = True) -> ParsedLine:
    """The CoNLL-U record of a line of sentences: true, or what the parser says, with its probabilities.

    Args:
        line: the sentences
        number: of the line in the text, from 0
        gold: the true parse, without probabilities
    """
    parse = ParsedLine(line_number=number)
    arcs: list[tuple[int, int, str, float]] = []
    for sentence in line:
        offset = len(parse.words)
        for index, (head, deprel) in enumerate(zip(sentence.heads, sentence.deprels)):
            phrase = sentence.phrases.get(index)
            candidates = {head: (deprel, 1.0)}
            if phrase is not None and phrase.belief is not None and not gold:
                candidates = {
                    site: ("nmod" if rank else "obl", round(p, 4))
                    for rank, (site, p) in enumerate(zip(phrase.sites, phrase.belief))
                }
                head = phrase.sites[phrase.best]
                deprel = candidates[head][0]
            parse.heads.append(head + offset)
            parse.deprels.append(deprel)
            ranked = sorted(candidates.items(), key=lambda item: -item[1][1])
            arcs += [(index + offset, site + offset, label, p) for site, (label, p) in ranked if p > 0]
        parse.words += sentence.words
        parse.upos += sentence.tags
        parse.xpos += ["_"] * len(sentence.words)
        parse.sentences.append((offset, len(parse.words)))
        for index, word in enumerate(sentence.words, start=offset):
            glued = index + 1 < len(parse.words) and parse.words[index + 1] == "."
            parse.tokens.append(Token(word, not glued, index, index, index))
    parse.arcs = None if gold else arcs
    return parse
