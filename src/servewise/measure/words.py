"""Common English words: in every large vocabulary most of them are one token with the space before them."""

from __future__ import annotations

from typing import Final

__all__ = ["WORDS"]

_TEXT: Final = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea kid body
information back parent face others level office door health person art war history party result change morning
reason research girl guy moment air teacher force education foot boy age policy music market sense nation plan
college interest death experience effect use class control field development role effort rate heart drug show
leader light voice wife police mind price report decision son view relationship town road arm difference value
building action season society tax director position player record paper space ground form event official matter
center couple site project activity star table need court oil situation cost industry figure street image phone
data picture practice piece land product doctor wall worker news test movie north love support technology step
baby computer type attention film tree source hair window evidence culture chance brother energy period course
summer plant opportunity term letter condition choice rule daughter south husband floor campaign material
population call economy hospital church risk fire future bank standard page size pressure skin bed blood cell
ball weight quality board east west fish box model stage option unit sound color style rock ship horse bird
bridge river lake island king queen gold silver iron stone glass wood metal paint cloud wind storm snow rain sun
moon sky sea beach hill mountain valley forest garden farm milk bread meat rice fruit apple sugar salt coffee
tea beer wine cup plate knife fork spoon chair desk lamp clock watch ring coat shirt shoe hat bag pocket key
lock wheel engine train plane boat bus truck driver pilot guard judge lawyer nurse chef actor artist writer poet
singer dance song band piano guitar drum note chapter sentence verb list map sign flag coin card gift prize
medal race goal match score coach fan crowd noise smile laugh tear dream hope fear anger joy peace truth lie
secret promise deal trade sale store shop customer client budget profit loss debt loan bill cash credit account
amount total average rest half double single first second third last next early late fast slow high low long
short wide deep big small large little young old new good bad hot cold warm cool dry wet clean dark bright soft
hard heavy strong weak rich poor full empty open close near far left inside outside above below under over
before after during between among through across along around behind beside beyond with without within about
against toward from into onto upon since until while because although though however also very much many more
most some any each every all both few several such same other another own only just even still yet already again
once twice always never often sometimes maybe perhaps really quite almost enough too here there where when why
how what which who that this these those have make take give get keep let put set find lose win buy sell pay
send bring carry hold pull push throw catch hit kick run walk jump climb swim fly drive ride sit stand sleep
wake eat drink cook wash wear cut break build fix draw read write speak tell ask answer listen hear see look
feel touch taste smell think know learn teach understand remember forget believe agree start stop begin finish
wait stay leave arrive return meet join help try turn move grow live die born kill fight save lead follow allow
want like hate seem become happen
"""

WORDS: Final[tuple[str, ...]] = tuple(_TEXT.split())
