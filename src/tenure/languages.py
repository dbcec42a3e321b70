"""What little is known of languages: stems, words that say nothing by themselves, and telling which it is.

A word is stemmed by its script alone, since a query of one word tells no language, and must give the stem
that the memory gave: English for Latin letters, Russian for Cyrillic, and so on. Beside that, a *text* in
one of six other languages that use Latin letters is recognised by its stop words, and its words are stemmed
in that language too (`stem_in`). Stemmers are slow and not safe between threads: each thread has its
own, and stems are kept.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator, Set
from functools import lru_cache
from typing import Protocol

import snowballstemmer  # pyright: ignore[reportMissingTypeStubs]  # it has none

from tenure.scripts import folded

_CACHED = 2**15  # words, of each kind of stem; a person's vocabulary fits in, a few MB

_STOP_WORDS = {
    "en": """a about all also am an and any are as at be because been before being but by can
        could did do does doing done for from get got had has have having he her here hers him
        his how i if in into is it its just let many me more most much my no not of on or our
        ours out over please she should so some such tell than that the their theirs them then
        there these they this those to too us very was we were what when where whether which
        while who whom whose why will with would you your yours ive im dont didnt doesnt isnt
        wasnt cant couldnt wouldnt youre thats whats""",
    "de": """aber als am an auch auf aus bei bin bis bist da damit dann das dass dein deine dem
        den der des dich die dies diese dieser dir doch du durch ein eine einem einen einer
        eines er es euch fur gibt habe haben hat hatte ich ihm ihn ihr ihre im in ist ja kann
        kein keine mein meine mich mir mit nach nicht noch nur ob oder ohne sehr sein seine
        sich sie sind so uber um und uns unser unter vom von vor war waren warum was weil
        welche welcher welches wem wen wenn wer werden wie wir wird wo wurde zu zum zur""",
    "es": """a al algo como con cual cuales cuando de del desde donde e el ella ellas ellos en
        entre era es esa ese eso esta estaba estan este esto estoy fue ha hace han hasta hay
        he la las le les lo los mas me mi mis mucho muy nada ni no nos o para pero por porque
        que quien quienes se ser si sin sobre son soy su sus tambien te tiene tienen tu tus un
        una uno y ya yo""",
    "fr": """a ai as au aux avec c ce ces cette comme d dans de des du elle elles en est et
        etait ete eu il ils j je l la le les leur lui m ma mais me mes moi mon n ne nos notre
        nous on ont ou par pas plus pour pourquoi qu quand que quel quelle quelles quels qui
        quoi s sa sans se ses si son sont sur t ta te tes toi ton tres tu un une vos votre
        vous y""",
    "it": """a ad agli ai al alla alle anche c che chi ci come con cosa cui da dal dalla dei
        del della delle di dove e ed era gli ha hai hanno ho i il in io l la le lei lo loro
        lui ma mi mia mie miei mio ne nel nella non o per perche piu qual quale quali quando
        quanto quello questa queste questi questo se sei si sia sono su sua sue suo suoi ti
        tra tu tua tue tuo tuoi un una uno""",
    "pt": """a ao aos as com como da das de dela dele do dos e ela elas ele eles em entre era
        essa esse esta este eu foi ha isso isto ja la lhe mais mas me meu meus minha muito na
        nao nas nem no nos nossa nosso o onde os ou para pela pelo por porque qual quais
        quando que quem sao se sem ser seu sua tambem te tem tinha tu um uma voce voces""",
    "nl": """aan al als ben bij dan dat de deze die dit door een en er geen had heb hebben
        heeft hem het hij hoe hun ik in is je jij jouw kan maar me mijn mij naar niet nog nu
        of om onze ook op over te tot u uit van veel voor waar waarom waren was wat we welke
        wie wij wordt zal ze zich zij zijn zo""",
    "ru": """а без бы был была были было быть в вам вас весь во вот все вы где да для до его ее
        если есть еще же за и из или им их к как какая какие какой когда кто ли мне мой моя мы
        на не него нее нет но ну о об он она они от по под при с свой себя со так там то
        только ты у уже что чтобы это этот я""",
    "el": """και να το η ο τα τι της του την τον με σε για που απο ειναι δεν θα στο στη στην
        ενα μια μου σου ποιος ποια ποιο ποτε πως που""",
    "ar": """في من على الى عن ما ماذا متى اين كيف هل هو هي هم انا انت كان كانت هذا هذه ذلك التي
        الذي لا و او ان""",
    "ko": """누구 누가 뭐 무엇 무슨 언제 어디 어디서 어떻게 어떤 왜 나 내 제 너 그 이 저 것 수
        있어 있나요 인가요""",
    "hi": """का की के को में से है हैं था थी थे और या पर यह वह क्या कौन कब कहाँ कैसे मैं मेरा
        मेरी मेरे तुम आप ने भी तो हो ही""",
    "zh": """的 了 是 在 我 你 他 她 它 们 這 这 那 个 個 和 与 也 都 就 吗 呢 吧 啊 什 么 麼 怎
        谁 哪 我的 你的 他的 她的 什么 什麼 怎么 是什 的是 我们 他们 是谁 在哪""",
    "ja": """です ます した して ました ですか ますか か は が を に の で と 私の 何で は何 ない""",
}
_IRREGULAR = """become became; begin began begun; bite bit bitten; break broke broken; bring
    brought; build built; burn burnt; buy bought; catch caught; choose chose chosen; come came;
    deal dealt; draw drew drawn; dream dreamt; drink drank drunk; drive drove driven; eat ate
    eaten; fall fell fallen; feed fed; feel felt; fight fought; find found; fly flew flown; forget
    forgot forgotten; forgive forgave forgiven; freeze froze frozen; get got gotten; give gave
    given; go went gone; grow grew grown; hang hung; hear heard; hide hid hidden; hold held; keep
    kept; know knew known; lead led; learn learnt; leave left; lend lent; lose lost; make made;
    mean meant; meet met; pay paid; ride rode ridden; ring rang rung; rise rose risen; run ran;
    say said; see saw seen; seek sought; sell sold; send sent; shake shook shaken; shine shone;
    shoot shot; show shown; sing sang sung; sink sank sunk; sit sat; sleep slept; speak spoke
    spoken; spend spent; stand stood; steal stole stolen; stick stuck; strike struck; swear swore
    sworn; sweep swept; swim swam swum; swing swung; take took taken; teach taught; tear tore
    torn; tell told; think thought; throw threw thrown; understand understood; wake woke woken;
    wear wore worn; weep wept; win won; write wrote written; child children; foot feet; knife
    knives; leaf leaves; life lives; man men; mouse mice; person people; tooth teeth; wife wives;
    woman women"""
"""Forms of English words that no rule leads back to the first; questions have one, memories another.

On LoCoMo's development half nDCG@10 is .005 lower without them, both with and without vectors.
"""

_BASE_FORMS = {
    form: forms.split()[0] for forms in _IRREGULAR.split(";") for form in forms.split()[1:]
}
_STEMMERS = {
    "es": "spanish",
    "fr": "french",
    "de": "german",
    "pt": "portuguese",
    "it": "italian",
    "nl": "dutch",
}
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
"""Their English names, whatever the locale."""

_MONTHS = """jan feb mar apr - jun jul aug sep oct nov dec; - - - - - - - - sept - - -;
    januar februar marz april mai juni juli august september oktober november dezember;
    enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre;
    janvier fevrier mars avril mai juin juillet aout septembre octobre novembre decembre;
    gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre;
    janeiro fevereiro marco abril maio junho julho agosto setembro outubro novembro dezembro;
    januari februari maart april mei juni juli augustus september oktober november december;
    январь февраль март апрель май июнь июль август сентябрь октябрь ноябрь декабрь;
    января февраля марта апреля мая июня июля августа сентября октября ноября декабря"""
_LATIN = ("en", *_STEMMERS)
_SCRIPTS = [  # where the letters of a script begin and end, and whose stems its words get
    (0x0061, 0x024F, "english"),
    (0x0370, 0x03FF, "greek"),
    (0x0400, 0x052F, "russian"),
    (0x0530, 0x058F, "armenian"),
    (0x0620, 0x06FF, "arabic"),
    (0x0900, 0x097F, "hindi"),
    (0x0B80, 0x0BFF, "tamil"),
]
_PARTICLES = re.compile(
    "(?<=..)(?:에서는|에서도|에게서|으로는|이라고|이라는|에서|에게|한테|께서|으로|부터|까지|처럼|보다|이랑|하고|이나|라고"
    "|이|가|의|에|도|로|와|과|만|나|랑)$|(?<=.)(?:은|는|을|를)$"
)


def stop_words(language: str | None) -> list[str]:
    """Return words that say nothing by themselves in a query.

    Those of a language that uses Latin letters are for queries in that language only: `die` and `was` are
    words like any other where the language is not German, and `None` is English. Those of other scripts
    stand in no one's way, and are always among them.
    """
    own = language or "en"
    others = (words for other, words in _STOP_WORDS.items() if other not in _LATIN)
    return " ".join((_STOP_WORDS[own], *others)).split()


def month_names() -> Iterator[tuple[str, int]]:
    """Yield short names of months and those in other languages, folded, each with its number from 1."""
    for names in _MONTHS.split(";"):
        yield from ((name, number) for number, name in enumerate(names.split(), 1) if name != "-")


def is_hint(word: str) -> bool:
    """Return whether a folded word is a stop word of a language in Latin letters."""
    return word in _HINTS


def language(words: Set[str]) -> str | None:
    """Return the language of a text that has these folded words.

    Returns:
        One that is not English, if two of its stop words or more are among them. Of several with as many,
        the first here: English, Spanish, French, German, Portuguese, Italian, Dutch. `None` does not mean
        English.
    """
    counts = Counter(language for word in words for language in _HINTS.get(word, ()))
    best = max(_LATIN, key=lambda language: counts[language])
    return best if best != "en" and counts[best] > 1 else None


@lru_cache(_CACHED)
def stem(word: str) -> str:
    """Return the stem of a folded word, by its script; the word where there is none."""
    first = ord(word[0])
    for start, end, algorithm in _SCRIPTS:
        if start <= first <= end:
            return folded(_stemmer(algorithm).stemWord(_BASE_FORMS.get(word, word))) or word
    return word


@lru_cache(_CACHED)
def stem_in(language: str, word: str) -> str:
    """Return the folded stem of a word, with its accents, in a language that `language` returned."""
    return folded(_stemmer(_STEMMERS[language]).stemWord(word.casefold()))


def without_particle(word: str) -> str:
    """Return a Korean word without the particle at its end, where what is left is still a word."""
    return _PARTICLES.sub("", word)


class _Stemmer(Protocol):
    def stemWord(self, word: str) -> str: ...  # noqa: N802


_own = threading.local()


def _stemmer(algorithm: str) -> _Stemmer:
    """Return this thread's stemmer: they hold the word that they are at work on."""
    found: _Stemmer | None = getattr(_own, algorithm, None)
    if found is None:
        # A function without types, which returns PyStemmer's stemmers where that is installed.
        found = snowballstemmer.stemmer(algorithm)  # pyright: ignore[reportUnknownMemberType]
        setattr(_own, algorithm, found)
    return found


_HINTS: dict[str, tuple[str, ...]] = {}
for _language in _LATIN:
    for _word in _STOP_WORDS[_language].split():
        if len(_word) > 1:
            _HINTS[_word] = (*_HINTS.get(_word, ()), _language)
